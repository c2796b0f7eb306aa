// The part of NCCL that this backend needs, without its header: a few functions, and their constants. The ABI of
// libnccl.so.2 is stable; `make test-cuda-fake` compares these with nccl.h.
#pragma once

#include <array>
#include <climits>
#include <cstddef>

#include "device/abi.h"

namespace farandole::backend::nccl {

enum class Result : int {  // ncclResult_t
  kSuccess = 0,
  kInProgress = 7,
};
enum class Dtype : int {  // ncclDataType_t
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};
enum class Op : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAverage = 4 };  // ncclRedOp_t, or a created one
enum class Residence : int { kHost = 1 };                                          // ncclScalarResidence_t
using Comm = struct OpaqueComm*;

struct UniqueId {
  std::array<std::byte, 128> bytes{};
};

// ncclConfig_t as of 2.18; newer libraries know the size, and fill in the rest.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;  // undefined, like the rest
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};
static_assert(sizeof(Config) == 48);

struct Functions {
  Result (*get_version)(int* version);
  Result (*get_unique_id)(UniqueId* id);
  const char* (*get_error_string)(Result result);
  const char* (*get_last_error)(Comm comm);
  Result (*comm_init_rank_config)(Comm* comm, int size, UniqueId id, int rank, Config* config);
  Result (*comm_finalize)(Comm comm);
  Result (*comm_destroy)(Comm comm);
  Result (*comm_abort)(Comm comm);
  Result (*comm_get_async_error)(Comm comm, Result* error);
  Result (*group_start)();
  Result (*group_end)();
  Result (*all_reduce)(const void* input, void* output, size_t count, Dtype dtype, Op op, Comm comm,
                       device::Stream stream);
  Result (*reduce)(const void* input, void* output, size_t count, Dtype dtype, Op op, int root, Comm comm,
                   device::Stream stream);
  Result (*broadcast)(const void* input, void* output, size_t count, Dtype dtype, int root, Comm comm,
                      device::Stream stream);
  // In these two, `count` is the number of elements of one rank.
  Result (*all_gather)(const void* input, void* output, size_t count, Dtype dtype, Comm comm, device::Stream stream);
  Result (*reduce_scatter)(const void* input, void* output, size_t count, Dtype dtype, Op op, Comm comm,
                           device::Stream stream);
  Result (*send)(const void* input, size_t count, Dtype dtype, int peer, Comm comm, device::Stream stream);
  Result (*receive)(void* output, size_t count, Dtype dtype, int peer, Comm comm, device::Stream stream);
  Result (*create_pre_mul_sum)(Op* op, void* scalar, Dtype dtype, Residence residence, Comm comm);
  Result (*destroy_op)(Op op, Comm comm);
};

// Calls visit(name, function) for every function, with its name in the library.
template <typename Visit>
void for_each_function(Functions& functions, Visit&& visit) {
  visit("ncclGetVersion", functions.get_version);
  visit("ncclGetUniqueId", functions.get_unique_id);
  visit("ncclGetErrorString", functions.get_error_string);
  visit("ncclGetLastError", functions.get_last_error);
  visit("ncclCommInitRankConfig", functions.comm_init_rank_config);
  visit("ncclCommFinalize", functions.comm_finalize);
  visit("ncclCommDestroy", functions.comm_destroy);
  visit("ncclCommAbort", functions.comm_abort);
  visit("ncclCommGetAsyncError", functions.comm_get_async_error);
  visit("ncclGroupStart", functions.group_start);
  visit("ncclGroupEnd", functions.group_end);
  visit("ncclAllReduce", functions.all_reduce);
  visit("ncclReduce", functions.reduce);
  visit("ncclBroadcast", functions.broadcast);
  visit("ncclAllGather", functions.all_gather);
  visit("ncclReduceScatter", functions.reduce_scatter);
  visit("ncclSend", functions.send);
  visit("ncclRecv", functions.receive);
  visit("ncclRedOpCreatePreMulSum", functions.create_pre_mul_sum);
  visit("ncclRedOpDestroy", functions.destroy_op);
}

}  // namespace farandole::backend::nccl
