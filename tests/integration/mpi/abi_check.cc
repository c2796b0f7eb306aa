// Compares our declarations of MPI with the header of one: HEADER, whose ABI has the constants OURS. Prints what
// differs; the exit code says whether anything does.
#include HEADER

#include <cstdio>
#include <cstring>
#include <type_traits>

#include "backend/mpi/abi.h"

namespace abi = farandole::backend::mpi;

namespace {

// A handle of ours is a number, as wide as their pointer or wider than their int. Anything else is the same type, or a
// pointer to what is alike.
template <typename Ours, typename Theirs>
constexpr bool alike() {
  if constexpr (std::is_same_v<Ours, Theirs>) {
    return true;
  } else if constexpr (std::is_enum_v<Ours>) {
    return (std::is_pointer_v<Theirs> && sizeof(Ours) == sizeof(Theirs)) || std::is_same_v<Theirs, int>;
  } else if constexpr (std::is_same_v<Ours, void*>) {
    return std::is_same_v<Theirs, MPI_Status*>;
  } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using OurTarget = std::remove_pointer_t<Ours>;
    using TheirTarget = std::remove_pointer_t<Theirs>;
    return std::is_const_v<OurTarget> == std::is_const_v<TheirTarget> &&
           alike<std::remove_const_t<OurTarget>, std::remove_const_t<TheirTarget>>();
  } else {
    return false;
  }
}

template <typename... Ours, typename... Theirs>
constexpr bool same(int (*)(Ours...), int (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
    return (alike<Ours, Theirs>() && ...);
  } else {
    return false;
  }
}

int differences = 0;
int functions = 0;

void compare(const char* what, unsigned long long ours, unsigned long long theirs) {
  if (ours != theirs) {
    std::printf("%s: %llu here, %llu in the header\n", what, ours, theirs);
    ++differences;
  }
}

template <typename Ours, typename Theirs>
void compare_function(const char* name, Ours ours, Theirs theirs) {
  compare(name, 1, same(ours, theirs) ? 1 : 0);
  ++functions;
}

template <typename Handle>
unsigned long long number(Handle handle) {
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<uintptr_t>(handle);
  } else {
    return static_cast<unsigned long long>(handle);
  }
}

}  // namespace

#define NUMBER(ours, theirs) compare(#theirs, number(ours), number(theirs))
#define FUNCTION(ours, theirs) compare_function(#theirs, table.ours, &theirs)

int main() {
  abi::Constants constants = abi::OURS;
#ifdef OPEN_MPI
  // That these are the objects' names, the compiler has seen.
  constants.world = abi::Comm{number(&ompi_mpi_comm_world)};
  constants.byte = abi::Datatype{number(&ompi_mpi_byte)};
  constants.errors_return = abi::Errhandler{number(&ompi_mpi_errors_return)};
  compare("the name of MPI_COMM_WORLD", 0, std::strcmp(abi::kOpenMpiWorld, "ompi_mpi_comm_world"));
  compare("the name of MPI_BYTE", 0, std::strcmp(abi::kOpenMpiByte, "ompi_mpi_byte"));
  compare("the name of MPI_ERRORS_RETURN", 0, std::strcmp(abi::kOpenMpiErrorsReturn, "ompi_mpi_errors_return"));
#endif
  NUMBER(constants.world, MPI_COMM_WORLD);
  NUMBER(constants.byte, MPI_BYTE);
  NUMBER(constants.errors_return, MPI_ERRORS_RETURN);
  NUMBER(constants.in_place, MPI_IN_PLACE);
  NUMBER(constants.status_ignore, MPI_STATUS_IGNORE);
  NUMBER(constants.thread_serialized, MPI_THREAD_SERIALIZED);
  NUMBER(constants.thread_multiple, MPI_THREAD_MULTIPLE);
  NUMBER(abi::kSuccess, MPI_SUCCESS);
  compare("room for errors", 1, abi::kMaxErrorString >= MPI_MAX_ERROR_STRING);
  compare("room for versions", 1, abi::kMaxLibraryVersionString >= MPI_MAX_LIBRARY_VERSION_STRING);

  abi::Functions table{};
  FUNCTION(get_library_version, MPI_Get_library_version);
  FUNCTION(error_string, MPI_Error_string);
  FUNCTION(initialized, MPI_Initialized);
  FUNCTION(finalized, MPI_Finalized);
  FUNCTION(init_thread, MPI_Init_thread);
  FUNCTION(query_thread, MPI_Query_thread);
  FUNCTION(finalize, MPI_Finalize);
  FUNCTION(comm_rank, MPI_Comm_rank);
  FUNCTION(comm_size, MPI_Comm_size);
  FUNCTION(comm_group, MPI_Comm_group);
  FUNCTION(group_incl, MPI_Group_incl);
  FUNCTION(group_free, MPI_Group_free);
  FUNCTION(comm_create_group, MPI_Comm_create_group);
  FUNCTION(comm_set_errhandler, MPI_Comm_set_errhandler);
  FUNCTION(comm_free, MPI_Comm_free);
  FUNCTION(test, MPI_Test);
  FUNCTION(ibcast, MPI_Ibcast);
  FUNCTION(iallgatherv, MPI_Iallgatherv);
  FUNCTION(ialltoall, MPI_Ialltoall);
  FUNCTION(ialltoallv, MPI_Ialltoallv);

  int loaded = 0;
  abi::for_each_function(table, [&](const char*, auto&) { ++loaded; });
  compare("functions that are loaded and compared", functions, loaded);
  compare("functions that are declared", sizeof(table) / sizeof(void*), loaded);
  return differences == 0 ? 0 : 1;
}
