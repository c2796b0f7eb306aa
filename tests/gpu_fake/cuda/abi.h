// The part of the CUDA driver's ABI that the fake GPU has: numbers and handles, without any header of CUDA. A test
// compares them with cuda.h where that is installed.
#pragma once

#include <cstdint>

namespace gpu_fake {

// CUresult.
enum Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kEccUncorrectable = 214,
  kInvalidHandle = 400,
  kNotReady = 600,
  kIllegalAddress = 700,
  kContextIsDestroyed = 709,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kLaunchFailed = 719,
  kNotPermitted = 800,
  kNotSupported = 801,
  kStreamCaptureUnsupported = 900,
  kStreamCaptureInvalidated = 901,
  kStreamCaptureUnmatched = 903,
  kStreamCaptureImplicit = 906,
  kCapturedEvent = 907,
  kUnknown = 999,
};

// Flags of streams and events.
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventBlockingSync = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kEventInterprocess = 4;
// Handles of the streams that exist without being created.
inline constexpr uintptr_t kStreamLegacy = 1;
inline constexpr uintptr_t kStreamPerThread = 2;
// Flags of cuMemHostAlloc: portable, mapped into the device, write-combined.
inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr unsigned kHostAllocDeviceMap = 2;
inline constexpr unsigned kHostAllocWriteCombined = 4;

enum CaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalidated = 2 };
enum MemoryType : unsigned { kMemoryHost = 1, kMemoryDevice = 2 };

// CUpointer_attribute.
enum PointerAttribute : int {
  kPointerContext = 1,
  kPointerMemoryType = 2,
  kPointerDevicePointer = 3,
  kPointerHostPointer = 4,
  kPointerBufferId = 7,
  kPointerIsManaged = 8,
  kPointerDeviceOrdinal = 9,
  kPointerRangeStart = 11,
  kPointerRangeSize = 12,
  kPointerMapped = 13,
};

// CUdevice_attribute.
enum DeviceAttribute : int {
  kDeviceMaxThreadsPerBlock = 1,
  kDeviceWarpSize = 10,
  kDeviceMultiprocessorCount = 16,
  kDeviceCanMapHostMemory = 19,
  kDevicePciBusId = 33,
  kDevicePciDeviceId = 34,
  kDeviceAsyncEngineCount = 40,
  kDeviceUnifiedAddressing = 41,
  kDevicePciDomainId = 50,
  kDeviceComputeCapabilityMajor = 75,
  kDeviceComputeCapabilityMinor = 76,
  kDeviceMemoryPoolsSupported = 115,
};

using Device = int;
using Address = uint64_t;  // CUdeviceptr
struct Context;            // CUcontext points to one
struct Stream;             // CUstream
struct Event;              // CUevent
// NOLINTNEXTLINE(performance-no-int-to-ptr)
inline void* pointer_to(Address address) { return reinterpret_cast<void*>(address); }
struct Uuid {
  char bytes[16];
};

}  // namespace gpu_fake
