// Checks that the engine's constants, layouts and signatures of NVIDIA's driver and of NCCL equal those of their
// headers. Only compiled, by test_headers.py.
#include <cuda.h>
#include <nccl.h>

#include <cstddef>

#include "backend/nccl/abi.h"
#include "device/abi.h"

namespace {

namespace device = farandole::device;
namespace nccl = farandole::backend::nccl;

// Whether two functions have the same signature: the same number of arguments, each of the same size.
template <typename R1, typename... A, typename R2, typename... B>
constexpr bool alike(R1 (*)(A...), R2 (*)(B...)) {
  if constexpr (sizeof...(A) != sizeof...(B)) {
    return false;
  } else {
    return sizeof(R1) == sizeof(R2) && ((sizeof(A) == sizeof(B)) && ... && true);
  }
}

// NOLINTBEGIN(cppcoreguidelines-macro-usage): the header renames functions by macros of its own.
#define SAME_NUMBER(theirs, ours) static_assert(static_cast<long long>(theirs) == static_cast<long long>(ours))
#define SAME_CALL(theirs, ours) static_assert(alike(decltype(&(theirs)){}, decltype(ours){}))
// NOLINTEND(cppcoreguidelines-macro-usage)

// --- the driver

SAME_NUMBER(CUDA_SUCCESS, device::Status::kSuccess);
SAME_NUMBER(CUDA_ERROR_NOT_READY, device::Status::kNotReady);
SAME_NUMBER(CU_STREAM_NON_BLOCKING, device::kStreamNonBlocking);
SAME_NUMBER(CU_EVENT_DISABLE_TIMING, device::kEventWithoutTiming);
SAME_NUMBER(CU_MEMHOSTALLOC_PORTABLE, device::kHostMemoryPortable);
SAME_NUMBER(CU_STREAM_CAPTURE_STATUS_NONE, device::kNotCapturing);
SAME_NUMBER(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device::kMemoryTypeAttribute);
SAME_NUMBER(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, device::kOrdinalAttribute);
SAME_NUMBER(CU_MEMORYTYPE_DEVICE, device::kDeviceMemory);
SAME_NUMBER(CU_MEMORYTYPE_UNIFIED, device::kUnifiedMemory);
static_assert(sizeof(CUuuid) == sizeof(device::Uuid));

SAME_CALL(cuInit, device::Functions::init);
SAME_CALL(cuDriverGetVersion, device::Functions::driver_get_version);
SAME_CALL(cuDeviceGetCount, device::Functions::device_get_count);
SAME_CALL(cuDeviceGet, device::Functions::device_get);
SAME_CALL(cuDeviceGetUuid, device::Functions::device_get_uuid);
SAME_CALL(cuDevicePrimaryCtxRetain, device::Functions::primary_ctx_retain);
SAME_CALL(cuDevicePrimaryCtxRelease, device::Functions::primary_ctx_release);
SAME_CALL(cuCtxPushCurrent, device::Functions::ctx_push);
SAME_CALL(cuCtxPopCurrent, device::Functions::ctx_pop);
SAME_CALL(cuCtxGetStreamPriorityRange, device::Functions::stream_priority_range);
SAME_CALL(cuStreamCreateWithPriority, device::Functions::stream_create);
SAME_CALL(cuStreamDestroy, device::Functions::stream_destroy);
SAME_CALL(cuStreamWaitEvent, device::Functions::stream_wait_event);
SAME_CALL(cuStreamIsCapturing, device::Functions::stream_is_capturing);
SAME_CALL(cuEventCreate, device::Functions::event_create);
SAME_CALL(cuEventDestroy, device::Functions::event_destroy);
SAME_CALL(cuEventRecord, device::Functions::event_record);
SAME_CALL(cuEventQuery, device::Functions::event_query);
SAME_CALL(cuPointerGetAttribute, device::Functions::pointer_get_attribute);
SAME_CALL(cuMemHostAlloc, device::Functions::host_alloc);
SAME_CALL(cuMemFreeHost, device::Functions::host_free);
SAME_CALL(cuMemAllocAsync, device::Functions::alloc_async);
SAME_CALL(cuMemFreeAsync, device::Functions::free_async);
SAME_CALL(cuMemcpyDtoHAsync, device::Functions::copy_to_host);
SAME_CALL(cuMemcpyHtoDAsync, device::Functions::copy_to_device);
SAME_CALL(cuMemcpyDtoDAsync, device::Functions::copy_on_device);
SAME_CALL(cuMemsetD8Async, device::Functions::fill_on_device);
SAME_CALL(cuGetErrorName, device::Functions::error_name);
SAME_CALL(cuGetErrorString, device::Functions::error_string);

// --- NCCL

SAME_NUMBER(ncclSuccess, nccl::Result::kSuccess);
SAME_NUMBER(ncclInProgress, nccl::Result::kInProgress);
SAME_NUMBER(ncclInt8, nccl::Dtype::kInt8);
SAME_NUMBER(ncclUint8, nccl::Dtype::kUint8);
SAME_NUMBER(ncclInt32, nccl::Dtype::kInt32);
SAME_NUMBER(ncclInt64, nccl::Dtype::kInt64);
SAME_NUMBER(ncclFloat16, nccl::Dtype::kFloat16);
SAME_NUMBER(ncclFloat32, nccl::Dtype::kFloat32);
SAME_NUMBER(ncclFloat64, nccl::Dtype::kFloat64);
SAME_NUMBER(ncclBfloat16, nccl::Dtype::kBfloat16);
SAME_NUMBER(ncclSum, nccl::Op::kSum);
SAME_NUMBER(ncclProd, nccl::Op::kProduct);
SAME_NUMBER(ncclMax, nccl::Op::kMax);
SAME_NUMBER(ncclMin, nccl::Op::kMin);
SAME_NUMBER(ncclAvg, nccl::Op::kAverage);
SAME_NUMBER(ncclScalarHostImmediate, nccl::Residence::kHost);
static_assert(sizeof(ncclUniqueId) == sizeof(nccl::UniqueId));

static_assert(offsetof(ncclConfig_t, size) == offsetof(nccl::Config, size));
static_assert(offsetof(ncclConfig_t, magic) == offsetof(nccl::Config, magic));
static_assert(offsetof(ncclConfig_t, version) == offsetof(nccl::Config, version));
static_assert(offsetof(ncclConfig_t, blocking) == offsetof(nccl::Config, blocking));
static_assert(offsetof(ncclConfig_t, cgaClusterSize) == offsetof(nccl::Config, cga_cluster_size));
static_assert(offsetof(ncclConfig_t, minCTAs) == offsetof(nccl::Config, min_ctas));
static_assert(offsetof(ncclConfig_t, maxCTAs) == offsetof(nccl::Config, max_ctas));
static_assert(offsetof(ncclConfig_t, netName) == offsetof(nccl::Config, net_name));
static_assert(offsetof(ncclConfig_t, splitShare) == offsetof(nccl::Config, split_share));
constexpr ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
static_assert(kTheirs.magic == nccl::Config{}.magic && kTheirs.minCTAs == nccl::Config{}.min_ctas);
static_assert(sizeof(ncclConfig_t) >= sizeof(nccl::Config) && kTheirs.version >= nccl::Config{}.version);

SAME_CALL(ncclGetVersion, nccl::Functions::get_version);
SAME_CALL(ncclGetUniqueId, nccl::Functions::get_unique_id);
SAME_CALL(ncclGetErrorString, nccl::Functions::get_error_string);
SAME_CALL(ncclGetLastError, nccl::Functions::get_last_error);
SAME_CALL(ncclCommInitRankConfig, nccl::Functions::comm_init_rank_config);
SAME_CALL(ncclCommFinalize, nccl::Functions::comm_finalize);
SAME_CALL(ncclCommDestroy, nccl::Functions::comm_destroy);
SAME_CALL(ncclCommAbort, nccl::Functions::comm_abort);
SAME_CALL(ncclCommGetAsyncError, nccl::Functions::comm_get_async_error);
SAME_CALL(ncclGroupStart, nccl::Functions::group_start);
SAME_CALL(ncclGroupEnd, nccl::Functions::group_end);
SAME_CALL(ncclAllReduce, nccl::Functions::all_reduce);
SAME_CALL(ncclReduce, nccl::Functions::reduce);
SAME_CALL(ncclBroadcast, nccl::Functions::broadcast);
SAME_CALL(ncclAllGather, nccl::Functions::all_gather);
SAME_CALL(ncclReduceScatter, nccl::Functions::reduce_scatter);
SAME_CALL(ncclSend, nccl::Functions::send);
SAME_CALL(ncclRecv, nccl::Functions::receive);
SAME_CALL(ncclRedOpCreatePreMulSum, nccl::Functions::create_pre_mul_sum);
SAME_CALL(ncclRedOpDestroy, nccl::Functions::destroy_op);

}  // namespace
