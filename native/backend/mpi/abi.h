// What this backend needs of MPI, without any MPI's header: functions with one signature in all of them, and the few
// numbers in which their ABIs differ, of which there are three.
//
//   standard  that of MPI 5 ("Application Binary Interface" in its standard): libmpi_abi.so.1 of any MPI that has it
//   mpich     libmpi.so.12 of MPICH and what follows its ABI: Intel MPI, Cray MPICH, MVAPICH
//   openmpi   libmpi.so.40 of Open MPI
//
// Handles are pointers, or ints in MPICH's ABI. Here they are numbers as wide as a pointer, which are passed in the
// same registers; where MPI writes one, it writes all of it, or its low half onto a zero. A test compares with the
// headers of these MPIs.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace farandole::backend::mpi {

static_assert(std::endian::native == std::endian::little, "the low half of a handle comes first");

// None of them is a handle that MPI gives, and all of them are what a variable must hold before MPI writes to it.
enum class Comm : uintptr_t { kNone = 0 };
enum class GroupHandle : uintptr_t { kNone = 0 };
enum class Errhandler : uintptr_t { kNone = 0 };
enum class Request : uintptr_t { kNone = 0 };
enum class Datatype : uintptr_t { kNone = 0 };

inline constexpr int kSuccess = 0;
inline constexpr size_t kMaxErrorString = 512;            // the largest of all
inline constexpr size_t kMaxLibraryVersionString = 8192;  // the same

struct Constants {
  Comm world = Comm::kNone;
  Datatype byte = Datatype::kNone;
  Errhandler errors_return = Errhandler::kNone;
  uintptr_t in_place = 0;       // a buffer
  uintptr_t status_ignore = 0;  // a pointer to a status
  // How many threads may call, in ascending order.
  int thread_serialized = 0;
  int thread_multiple = 0;
};
inline constexpr Constants kStandard = {Comm{0x101}, Datatype{0x247}, Errhandler{0x143}, 1, 0, 2048, 4096};
inline constexpr Constants kMpich = {
    Comm{0x44000000}, Datatype{0x4c00010d}, Errhandler{0x54000001}, UINTPTR_MAX, 1, 2, 3};
// Its handles are the addresses of objects in its library.
inline constexpr Constants kOpenMpi = {Comm::kNone, Datatype::kNone, Errhandler::kNone, 1, 0, 2, 3};
inline constexpr const char* kOpenMpiWorld = "ompi_mpi_comm_world";
inline constexpr const char* kOpenMpiByte = "ompi_mpi_byte";
inline constexpr const char* kOpenMpiErrorsReturn = "ompi_mpi_errors_return";

// A function of the standard ABI only; another library lacks it, or gives -1.
using AbiGetVersion = int (*)(int* major, int* minor);
inline constexpr int kAbiVersion = 1;  // the major one

struct Functions {
  int (*get_library_version)(char* version, int* length);
  int (*error_string)(int code, char* text, int* length);
  int (*initialized)(int* flag);
  int (*finalized)(int* flag);
  int (*init_thread)(int* argc, char*** argv, int required, int* provided);
  int (*query_thread)(int* provided);
  int (*finalize)();
  int (*comm_rank)(Comm comm, int* rank);
  int (*comm_size)(Comm comm, int* size);
  int (*comm_group)(Comm comm, GroupHandle* group);
  int (*group_incl)(GroupHandle group, int count, const int ranks[], GroupHandle* result);
  int (*group_free)(GroupHandle* group);
  int (*comm_create_group)(Comm comm, GroupHandle group, int tag, Comm* result);
  int (*comm_set_errhandler)(Comm comm, Errhandler handler);
  int (*comm_free)(Comm* comm);
  int (*test)(Request* request, int* flag, void* status);
  int (*ibcast)(void* buffer, int count, Datatype type, int root, Comm comm, Request* request);
  int (*iallgatherv)(const void* input, int input_count, Datatype input_type, void* output, const int counts[],
                     const int displacements[], Datatype output_type, Comm comm, Request* request);
  int (*ialltoall)(const void* input, int input_count, Datatype input_type, void* output, int output_count,
                   Datatype output_type, Comm comm, Request* request);
  int (*ialltoallv)(const void* input, const int input_counts[], const int input_displacements[], Datatype input_type,
                    void* output, const int output_counts[], const int output_displacements[], Datatype output_type,
                    Comm comm, Request* request);
};

// Calls visit(name, function) for every function, with its name in the library.
template <typename Visit>
void for_each_function(Functions& functions, Visit&& visit) {
  visit("MPI_Get_library_version", functions.get_library_version);
  visit("MPI_Error_string", functions.error_string);
  visit("MPI_Initialized", functions.initialized);
  visit("MPI_Finalized", functions.finalized);
  visit("MPI_Init_thread", functions.init_thread);
  visit("MPI_Query_thread", functions.query_thread);
  visit("MPI_Finalize", functions.finalize);
  visit("MPI_Comm_rank", functions.comm_rank);
  visit("MPI_Comm_size", functions.comm_size);
  visit("MPI_Comm_group", functions.comm_group);
  visit("MPI_Group_incl", functions.group_incl);
  visit("MPI_Group_free", functions.group_free);
  visit("MPI_Comm_create_group", functions.comm_create_group);
  visit("MPI_Comm_set_errhandler", functions.comm_set_errhandler);
  visit("MPI_Comm_free", functions.comm_free);
  visit("MPI_Test", functions.test);
  visit("MPI_Ibcast", functions.ibcast);
  visit("MPI_Iallgatherv", functions.iallgatherv);
  visit("MPI_Ialltoall", functions.ialltoall);
  visit("MPI_Ialltoallv", functions.ialltoallv);
}

}  // namespace farandole::backend::mpi
