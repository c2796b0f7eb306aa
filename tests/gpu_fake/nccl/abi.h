// The part of NCCL's ABI that the fake has: numbers and layouts, without any header of NCCL.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nccl_fake {

// ncclResult_t.
enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// ncclDataType_t. The fake does not know the two of 8 bits, 10 and 11.
enum Dtype : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

// ncclRedOp_t. What ncclRedOpCreatePreMulSum gives begins at kFirstCreated.
enum Op : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4, kFirstCreated = 5 };

// ncclScalarResidence_t.
enum Residence : int { kScalarDevice = 0, kScalarHost = 1 };

struct UniqueId {
  char bytes[128];
};

inline constexpr unsigned kConfigMagic = 0xcafebeef;
inline constexpr int kUndefined = INT32_MIN;

// ncclConfig_t as of 2.18. Newer callers have more fields behind it, and show that in `size`.
struct Config {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cga_cluster_size;
  int min_ctas;
  int max_ctas;
  const char* net_name;
  int split_share;
};
static_assert(sizeof(Config) == 48);

struct Comm;  // ncclComm_t points to one

}  // namespace nccl_fake
