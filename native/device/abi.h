// The part of NVIDIA's driver API that this room needs, without its header: a few functions, and their constants.
// The ABI of the driver is stable; `make test-cuda-fake` compares these with cuda.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace farandole::device {

enum class Status : int {  // CUresult
  kSuccess = 0,
  kNotReady = 600,
};
using Ordinal = int;       // CUdevice
using Address = uint64_t;  // CUdeviceptr
using Context = struct OpaqueContext*;
using Stream = struct OpaqueStream*;
using Event = struct OpaqueEvent*;

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventWithoutTiming = 2;
inline constexpr unsigned kHostMemoryPortable = 1;
inline constexpr int kNotCapturing = 0;
// Attributes of a pointer.
inline constexpr int kMemoryTypeAttribute = 2;
inline constexpr int kOrdinalAttribute = 9;
inline constexpr unsigned kDeviceMemory = 2;
inline constexpr unsigned kUnifiedMemory = 4;

struct Uuid {  // CUuuid
  std::array<std::byte, 16> bytes{};
  bool operator==(const Uuid&) const = default;
};

struct Functions {
  Status (*init)(unsigned flags);
  Status (*driver_get_version)(int* version);
  Status (*device_get_count)(int* count);
  Status (*device_get)(Ordinal* device, int index);
  Status (*device_get_uuid)(Uuid* uuid, Ordinal device);
  Status (*primary_ctx_retain)(Context* context, Ordinal device);
  Status (*primary_ctx_release)(Ordinal device);
  Status (*ctx_push)(Context context);
  Status (*ctx_pop)(Context* context);
  Status (*stream_priority_range)(int* least, int* greatest);
  Status (*stream_create)(Stream* stream, unsigned flags, int priority);
  Status (*stream_destroy)(Stream stream);
  Status (*stream_wait_event)(Stream stream, Event event, unsigned flags);
  Status (*stream_is_capturing)(Stream stream, int* status);
  Status (*event_create)(Event* event, unsigned flags);
  Status (*event_destroy)(Event event);
  Status (*event_record)(Event event, Stream stream);
  Status (*event_query)(Event event);
  Status (*pointer_get_attribute)(void* value, int attribute, Address address);
  Status (*host_alloc)(void** memory, size_t bytes, unsigned flags);
  Status (*host_free)(void* memory);
  Status (*alloc_async)(Address* address, size_t bytes, Stream stream);
  Status (*free_async)(Address address, Stream stream);
  Status (*copy_to_host)(void* target, Address source, size_t bytes, Stream stream);
  Status (*copy_to_device)(Address target, const void* source, size_t bytes, Stream stream);
  Status (*copy_on_device)(Address target, Address source, size_t bytes, Stream stream);
  Status (*fill_on_device)(Address target, unsigned char value, size_t bytes, Stream stream);
  Status (*error_name)(Status status, const char** name);
  Status (*error_string)(Status status, const char** text);
};

// Calls visit(name, function) for every function, with its name in the library.
template <typename Visit>
void for_each_function(Functions& functions, Visit&& visit) {
  visit("cuInit", functions.init);
  visit("cuDriverGetVersion", functions.driver_get_version);
  visit("cuDeviceGetCount", functions.device_get_count);
  visit("cuDeviceGet", functions.device_get);
  visit("cuDeviceGetUuid_v2", functions.device_get_uuid);
  visit("cuDevicePrimaryCtxRetain", functions.primary_ctx_retain);
  visit("cuDevicePrimaryCtxRelease_v2", functions.primary_ctx_release);
  visit("cuCtxPushCurrent_v2", functions.ctx_push);
  visit("cuCtxPopCurrent_v2", functions.ctx_pop);
  visit("cuCtxGetStreamPriorityRange", functions.stream_priority_range);
  visit("cuStreamCreateWithPriority", functions.stream_create);
  visit("cuStreamDestroy_v2", functions.stream_destroy);
  visit("cuStreamWaitEvent", functions.stream_wait_event);
  visit("cuStreamIsCapturing", functions.stream_is_capturing);
  visit("cuEventCreate", functions.event_create);
  visit("cuEventDestroy_v2", functions.event_destroy);
  visit("cuEventRecord", functions.event_record);
  visit("cuEventQuery", functions.event_query);
  visit("cuPointerGetAttribute", functions.pointer_get_attribute);
  visit("cuMemHostAlloc", functions.host_alloc);
  visit("cuMemFreeHost", functions.host_free);
  visit("cuMemAllocAsync", functions.alloc_async);
  visit("cuMemFreeAsync", functions.free_async);
  visit("cuMemcpyDtoHAsync_v2", functions.copy_to_host);
  visit("cuMemcpyHtoDAsync_v2", functions.copy_to_device);
  visit("cuMemcpyDtoDAsync_v2", functions.copy_on_device);
  visit("cuMemsetD8Async", functions.fill_on_device);
  visit("cuGetErrorName", functions.error_name);
  visit("cuGetErrorString", functions.error_string);
}

}  // namespace farandole::device
