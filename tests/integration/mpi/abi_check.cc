// Compares our declarations of MPI's standard ABI with the header of an MPI that has it: types, numbers, and every
// function's parameters. Prints what differs; the exit code says whether anything does.
#include <mpi_abi.h>

#include <cstdio>
#include <type_traits>

#include "backend/mpi/abi.h"

namespace abi = farandole::backend::mpi;

namespace {

// A handle of ours is a number as wide as theirs, a pointer to a type that nobody defines. Anything else is the same
// type, or a pointer to what is alike.
template <typename Ours, typename Theirs>
constexpr bool alike() {
  if constexpr (std::is_same_v<Ours, Theirs>) {
    return true;
  } else if constexpr (std::is_enum_v<Ours>) {
    return std::is_pointer_v<Theirs> && sizeof(Ours) == sizeof(Theirs);
  } else if constexpr (std::is_same_v<Ours, abi::Status>) {
    return std::is_same_v<Theirs, MPI_Status> && sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs);
  } else if constexpr (std::is_integral_v<Ours>) {
    return std::is_integral_v<Theirs> && sizeof(Ours) == sizeof(Theirs) &&
           std::is_signed_v<Ours> == std::is_signed_v<Theirs>;
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

void compare(const char* what, long long ours, long long theirs) {
  if (ours != theirs) {
    std::printf("%s: %lld here, %lld in mpi_abi.h\n", what, ours, theirs);
    ++differences;
  }
}

template <typename Ours, typename Theirs>
void compare_function(const char* name, Ours ours, Theirs theirs) {
  compare(name, 1, same(ours, theirs) ? 1 : 0);
  ++functions;
}

template <typename Handle>
long long number(Handle handle) {
  return static_cast<long long>(reinterpret_cast<uintptr_t>(handle));
}
template <typename Handle>
  requires std::is_enum_v<Handle>
long long number(Handle handle) {
  return static_cast<long long>(handle);
}

}  // namespace

#define NUMBER(ours, theirs) compare(#theirs, number(ours), number(theirs))
#define FUNCTION(ours, theirs) compare_function(#theirs, table.ours, &theirs)

int main() {
  NUMBER(abi::Comm::kNull, MPI_COMM_NULL);
  NUMBER(abi::Comm::kWorld, MPI_COMM_WORLD);
  NUMBER(abi::GroupHandle::kNull, MPI_GROUP_NULL);
  NUMBER(abi::Errhandler::kErrorsReturn, MPI_ERRORS_RETURN);
  NUMBER(abi::Request::kNull, MPI_REQUEST_NULL);
  NUMBER(abi::Datatype::kByte, MPI_BYTE);
  compare("MPI_SUCCESS", abi::kSuccess, MPI_SUCCESS);
  compare("MPI_THREAD_SERIALIZED", abi::kThreadSerialized, MPI_THREAD_SERIALIZED);
  compare("MPI_THREAD_MULTIPLE", abi::kThreadMultiple, MPI_THREAD_MULTIPLE);
  compare("MPI_MAX_ERROR_STRING", abi::kMaxErrorString, MPI_MAX_ERROR_STRING);
  compare("MPI_MAX_LIBRARY_VERSION_STRING", abi::kMaxLibraryVersionString, MPI_MAX_LIBRARY_VERSION_STRING);
  compare("MPI_IN_PLACE", abi::kInPlace, number(MPI_IN_PLACE));
  compare("MPI_STATUS_IGNORE", 0, number(MPI_STATUS_IGNORE));
  compare("MPI_ABI_VERSION", abi::kAbiVersion, MPI_ABI_VERSION);

  abi::Functions table{};
  FUNCTION(abi_get_version, MPI_Abi_get_version);
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
  FUNCTION(ibcast, MPI_Ibcast_c);
  FUNCTION(iallgatherv, MPI_Iallgatherv_c);
  FUNCTION(ialltoall, MPI_Ialltoall_c);
  FUNCTION(ialltoallv, MPI_Ialltoallv_c);

  int loaded = 0;
  abi::for_each_function(table, [&](const char*, auto&) { ++loaded; });
  compare("functions that are loaded and compared", functions, loaded);
  compare("functions that are declared", static_cast<long long>(sizeof(table) / sizeof(void*)), loaded);
  return differences == 0 ? 0 : 1;
}
