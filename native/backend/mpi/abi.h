// What this backend needs of MPI, as the standard ABI of MPI 5 has it ("Application Binary Interface", MPI 5.0, chapter
// 20): every library with the name libmpi_abi.so.1 has these functions, types and numbers. So no header and no library
// of any MPI is needed to build this; a test compares with the header that one of them brings.
//
// Handles are pointers in the ABI, whose predefined values are small numbers. Here they are numbers as wide, which are
// passed in the same registers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace farandole::backend::mpi {

using Count = int64_t;   // MPI_Count
using Aint = ptrdiff_t;  // MPI_Aint

enum class Comm : uintptr_t { kNull = 0x100, kWorld = 0x101 };
enum class GroupHandle : uintptr_t { kNull = 0x108 };
enum class Errhandler : uintptr_t { kErrorsReturn = 0x143 };
enum class Request : uintptr_t { kNull = 0x180 };
enum class Datatype : uintptr_t { kByte = 0x247 };
struct Status {
  int source;
  int tag;
  int error;
  int internal[5];
};

inline constexpr int kAbiVersion = 1;  // the major one
inline constexpr int kSuccess = 0;
// How many threads may call, in ascending order.
inline constexpr int kThreadSerialized = 2048;
inline constexpr int kThreadMultiple = 4096;
inline constexpr size_t kMaxErrorString = 512;
inline constexpr size_t kMaxLibraryVersionString = 8192;
inline constexpr uintptr_t kInPlace = 1;  // a buffer

struct Functions {
  int (*abi_get_version)(int* major, int* minor);
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
  int (*test)(Request* request, int* flag, Status* status);
  int (*ibcast)(void* buffer, Count count, Datatype type, int root, Comm comm, Request* request);
  int (*iallgatherv)(const void* input, Count input_count, Datatype input_type, void* output, const Count counts[],
                     const Aint displacements[], Datatype output_type, Comm comm, Request* request);
  int (*ialltoall)(const void* input, Count input_count, Datatype input_type, void* output, Count output_count,
                   Datatype output_type, Comm comm, Request* request);
  int (*ialltoallv)(const void* input, const Count input_counts[], const Aint input_displacements[],
                    Datatype input_type, void* output, const Count output_counts[], const Aint output_displacements[],
                    Datatype output_type, Comm comm, Request* request);
};

// Calls visit(name, function) for every function, with its name in the library.
template <typename Visit>
void for_each_function(Functions& functions, Visit&& visit) {
  visit("MPI_Abi_get_version", functions.abi_get_version);
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
  visit("MPI_Ibcast_c", functions.ibcast);
  visit("MPI_Iallgatherv_c", functions.iallgatherv);
  visit("MPI_Ialltoall_c", functions.ialltoall);
  visit("MPI_Ialltoallv_c", functions.ialltoallv);
}

}  // namespace farandole::backend::mpi
