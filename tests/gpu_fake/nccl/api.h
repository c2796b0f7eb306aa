// The functions of NCCL that the fake has, with NCCL's names and signatures.
#pragma once

#include "cuda/abi.h"
#include "nccl/abi.h"

#define FAKE_NCCL_API __attribute__((visibility("default")))

namespace nccl_fake {
extern "C" {

FAKE_NCCL_API Result ncclGetVersion(int* version);
FAKE_NCCL_API Result ncclGetUniqueId(UniqueId* id);
FAKE_NCCL_API const char* ncclGetErrorString(Result code);
FAKE_NCCL_API const char* ncclGetLastError(Comm* comm);

FAKE_NCCL_API Result ncclCommInitRank(Comm** comm, int size, UniqueId id, int rank);
FAKE_NCCL_API Result ncclCommInitRankConfig(Comm** comm, int size, UniqueId id, int rank, Config* config);
FAKE_NCCL_API Result ncclCommFinalize(Comm* comm);
FAKE_NCCL_API Result ncclCommDestroy(Comm* comm);
FAKE_NCCL_API Result ncclCommAbort(Comm* comm);
FAKE_NCCL_API Result ncclCommGetAsyncError(Comm* comm, Result* error);
FAKE_NCCL_API Result ncclCommCount(Comm* comm, int* size);
FAKE_NCCL_API Result ncclCommUserRank(Comm* comm, int* rank);
FAKE_NCCL_API Result ncclCommCuDevice(Comm* comm, int* device);

FAKE_NCCL_API Result ncclGroupStart();
FAKE_NCCL_API Result ncclGroupEnd();

FAKE_NCCL_API Result ncclAllReduce(const void* input, void* output, size_t count, Dtype dtype, int op, Comm* comm,
                                   gpu_fake::Stream* stream);
FAKE_NCCL_API Result ncclReduce(const void* input, void* output, size_t count, Dtype dtype, int op, int root,
                                Comm* comm, gpu_fake::Stream* stream);
FAKE_NCCL_API Result ncclBroadcast(const void* input, void* output, size_t count, Dtype dtype, int root, Comm* comm,
                                   gpu_fake::Stream* stream);
FAKE_NCCL_API Result ncclBcast(void* buffer, size_t count, Dtype dtype, int root, Comm* comm, gpu_fake::Stream* stream);
// In these two, `count` is the number of elements of one rank.
FAKE_NCCL_API Result ncclAllGather(const void* input, void* output, size_t count, Dtype dtype, Comm* comm,
                                   gpu_fake::Stream* stream);
FAKE_NCCL_API Result ncclReduceScatter(const void* input, void* output, size_t count, Dtype dtype, int op, Comm* comm,
                                       gpu_fake::Stream* stream);
FAKE_NCCL_API Result ncclSend(const void* input, size_t count, Dtype dtype, int peer, Comm* comm,
                              gpu_fake::Stream* stream);
FAKE_NCCL_API Result ncclRecv(void* output, size_t count, Dtype dtype, int peer, Comm* comm, gpu_fake::Stream* stream);

FAKE_NCCL_API Result ncclRedOpCreatePreMulSum(int* op, void* scalar, Dtype dtype, Residence residence, Comm* comm);
FAKE_NCCL_API Result ncclRedOpDestroy(int op, Comm* comm);

}  // extern "C"
}  // namespace nccl_fake
