// The numbers of the ABI are those of cuda.h. Skipped where no CUDA is installed.
#include <gtest/gtest.h>

#include "cuda/abi.h"

#if __has_include(<cuda.h>)
#include <cuda.h>
#endif

namespace gpu_fake {
namespace {

TEST(Header, HasTheNumbersOfCuda) {
#if __has_include(<cuda.h>)
  static_assert(sizeof(CUdeviceptr) == sizeof(Address) && sizeof(CUuuid) == sizeof(Uuid));
  static_assert(sizeof(CUresult) == sizeof(Result) && sizeof(CUdevice) == sizeof(Device));
  const std::pair<int, int> numbers[] = {
      {CUDA_SUCCESS, kSuccess},
      {CUDA_ERROR_INVALID_VALUE, kInvalidValue},
      {CUDA_ERROR_OUT_OF_MEMORY, kOutOfMemory},
      {CUDA_ERROR_NOT_INITIALIZED, kNotInitialized},
      {CUDA_ERROR_DEINITIALIZED, kDeinitialized},
      {CUDA_ERROR_NO_DEVICE, kNoDevice},
      {CUDA_ERROR_INVALID_DEVICE, kInvalidDevice},
      {CUDA_ERROR_INVALID_CONTEXT, kInvalidContext},
      {CUDA_ERROR_ECC_UNCORRECTABLE, kEccUncorrectable},
      {CUDA_ERROR_INVALID_HANDLE, kInvalidHandle},
      {CUDA_ERROR_NOT_READY, kNotReady},
      {CUDA_ERROR_ILLEGAL_ADDRESS, kIllegalAddress},
      {CUDA_ERROR_CONTEXT_IS_DESTROYED, kContextIsDestroyed},
      {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, kHostMemoryAlreadyRegistered},
      {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, kHostMemoryNotRegistered},
      {CUDA_ERROR_LAUNCH_FAILED, kLaunchFailed},
      {CUDA_ERROR_NOT_PERMITTED, kNotPermitted},
      {CUDA_ERROR_NOT_SUPPORTED, kNotSupported},
      {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, kStreamCaptureUnsupported},
      {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, kStreamCaptureInvalidated},
      {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, kStreamCaptureUnmatched},
      {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, kStreamCaptureImplicit},
      {CUDA_ERROR_CAPTURED_EVENT, kCapturedEvent},
      {CUDA_ERROR_UNKNOWN, kUnknown},
      {CU_STREAM_NON_BLOCKING, kStreamNonBlocking},
      {CU_EVENT_BLOCKING_SYNC, kEventBlockingSync},
      {CU_EVENT_DISABLE_TIMING, kEventDisableTiming},
      {CU_EVENT_INTERPROCESS, kEventInterprocess},
      {CU_MEMHOSTALLOC_PORTABLE, kHostAllocPortable},
      {CU_MEMHOSTALLOC_DEVICEMAP, kHostAllocDeviceMap},
      {CU_MEMHOSTALLOC_WRITECOMBINED, kHostAllocWriteCombined},
      {CU_STREAM_CAPTURE_STATUS_NONE, kCaptureNone},
      {CU_STREAM_CAPTURE_STATUS_ACTIVE, kCaptureActive},
      {CU_STREAM_CAPTURE_STATUS_INVALIDATED, kCaptureInvalidated},
      {CU_MEMORYTYPE_HOST, kMemoryHost},
      {CU_MEMORYTYPE_DEVICE, kMemoryDevice},
      {CU_POINTER_ATTRIBUTE_CONTEXT, kPointerContext},
      {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, kPointerMemoryType},
      {CU_POINTER_ATTRIBUTE_DEVICE_POINTER, kPointerDevicePointer},
      {CU_POINTER_ATTRIBUTE_HOST_POINTER, kPointerHostPointer},
      {CU_POINTER_ATTRIBUTE_BUFFER_ID, kPointerBufferId},
      {CU_POINTER_ATTRIBUTE_IS_MANAGED, kPointerIsManaged},
      {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, kPointerDeviceOrdinal},
      {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, kPointerRangeStart},
      {CU_POINTER_ATTRIBUTE_RANGE_SIZE, kPointerRangeSize},
      {CU_POINTER_ATTRIBUTE_MAPPED, kPointerMapped},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kDeviceMaxThreadsPerBlock},
      {CU_DEVICE_ATTRIBUTE_WARP_SIZE, kDeviceWarpSize},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, kDeviceMultiprocessorCount},
      {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, kDeviceCanMapHostMemory},
      {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, kDevicePciBusId},
      {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, kDevicePciDeviceId},
      {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, kDeviceAsyncEngineCount},
      {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, kDeviceUnifiedAddressing},
      {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, kDevicePciDomainId},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, kDeviceComputeCapabilityMajor},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, kDeviceComputeCapabilityMinor},
      {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, kDeviceMemoryPoolsSupported},
  };
  for (const auto& [theirs, ours] : numbers) {
    EXPECT_EQ(theirs, ours);
  }
  EXPECT_EQ(reinterpret_cast<uintptr_t>(CU_STREAM_LEGACY), kStreamLegacy);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(CU_STREAM_PER_THREAD), kStreamPerThread);
#else
  GTEST_SKIP() << "cuda.h is not installed";
#endif
}

}  // namespace
}  // namespace gpu_fake
