// The functions of the CUDA driver that the fake GPU has, with the driver's names and signatures.
#pragma once

#include <cstddef>

#include "cuda/abi.h"

#define FAKE_GPU_API __attribute__((visibility("default")))

namespace gpu_fake {
extern "C" {

FAKE_GPU_API Result cuInit(unsigned flags);
FAKE_GPU_API Result cuDriverGetVersion(int* version);
FAKE_GPU_API Result cuGetErrorName(Result code, const char** text);
FAKE_GPU_API Result cuGetErrorString(Result code, const char** text);

FAKE_GPU_API Result cuDeviceGetCount(int* count);
FAKE_GPU_API Result cuDeviceGet(Device* device, int ordinal);
FAKE_GPU_API Result cuDeviceGetName(char* name, int length, Device device);
FAKE_GPU_API Result cuDeviceGetUuid_v2(Uuid* uuid, Device device);
FAKE_GPU_API Result cuDeviceGetPCIBusId(char* id, int length, Device device);
FAKE_GPU_API Result cuDeviceGetAttribute(int* value, DeviceAttribute attribute, Device device);
FAKE_GPU_API Result cuDeviceTotalMem_v2(size_t* bytes, Device device);
FAKE_GPU_API Result cuDeviceCanAccessPeer(int* can, Device device, Device peer);

FAKE_GPU_API Result cuDevicePrimaryCtxRetain(Context** context, Device device);
FAKE_GPU_API Result cuDevicePrimaryCtxRelease_v2(Device device);
FAKE_GPU_API Result cuDevicePrimaryCtxGetState(Device device, unsigned* flags, int* active);
FAKE_GPU_API Result cuCtxPushCurrent_v2(Context* context);
FAKE_GPU_API Result cuCtxPopCurrent_v2(Context** context);
FAKE_GPU_API Result cuCtxGetCurrent(Context** context);
FAKE_GPU_API Result cuCtxSetCurrent(Context* context);
FAKE_GPU_API Result cuCtxGetDevice(Device* device);
FAKE_GPU_API Result cuCtxGetStreamPriorityRange(int* least, int* greatest);
FAKE_GPU_API Result cuCtxSynchronize();
FAKE_GPU_API Result cuCtxRecordEvent(Context* context, Event* event);
FAKE_GPU_API Result cuCtxWaitEvent(Context* context, Event* event);

FAKE_GPU_API Result cuStreamCreate(Stream** stream, unsigned flags);
FAKE_GPU_API Result cuStreamCreateWithPriority(Stream** stream, unsigned flags, int priority);
FAKE_GPU_API Result cuStreamDestroy_v2(Stream* stream);
FAKE_GPU_API Result cuStreamQuery(Stream* stream);
FAKE_GPU_API Result cuStreamSynchronize(Stream* stream);
FAKE_GPU_API Result cuStreamWaitEvent(Stream* stream, Event* event, unsigned flags);
FAKE_GPU_API Result cuStreamGetCtx(Stream* stream, Context** context);
FAKE_GPU_API Result cuStreamGetPriority(Stream* stream, int* priority);
FAKE_GPU_API Result cuStreamGetFlags(Stream* stream, unsigned* flags);
FAKE_GPU_API Result cuStreamIsCapturing(Stream* stream, CaptureStatus* status);
FAKE_GPU_API Result cuStreamBeginCapture_v2(Stream* stream, int mode);
FAKE_GPU_API Result cuStreamEndCapture(Stream* stream, void** graph);
FAKE_GPU_API Result cuLaunchHostFunc(Stream* stream, void (*function)(void*), void* argument);

FAKE_GPU_API Result cuEventCreate(Event** event, unsigned flags);
FAKE_GPU_API Result cuEventDestroy_v2(Event* event);
FAKE_GPU_API Result cuEventRecord(Event* event, Stream* stream);
FAKE_GPU_API Result cuEventQuery(Event* event);
FAKE_GPU_API Result cuEventSynchronize(Event* event);
FAKE_GPU_API Result cuEventElapsedTime(float* milliseconds, Event* start, Event* end);
FAKE_GPU_API Result cuEventElapsedTime_v2(float* milliseconds, Event* start, Event* end);

FAKE_GPU_API Result cuMemAlloc_v2(Address* address, size_t bytes);
FAKE_GPU_API Result cuMemFree_v2(Address address);
FAKE_GPU_API Result cuMemAllocAsync(Address* address, size_t bytes, Stream* stream);
FAKE_GPU_API Result cuMemFreeAsync(Address address, Stream* stream);
FAKE_GPU_API Result cuMemGetInfo_v2(size_t* free, size_t* total);
FAKE_GPU_API Result cuMemGetAddressRange_v2(Address* base, size_t* bytes, Address address);
FAKE_GPU_API Result cuMemHostAlloc(void** memory, size_t bytes, unsigned flags);
FAKE_GPU_API Result cuMemFreeHost(void* memory);
FAKE_GPU_API Result cuMemHostRegister_v2(void* memory, size_t bytes, unsigned flags);
FAKE_GPU_API Result cuMemHostUnregister(void* memory);
FAKE_GPU_API Result cuPointerGetAttribute(void* data, PointerAttribute attribute, Address pointer);
FAKE_GPU_API Result cuPointerGetAttributes(unsigned count, PointerAttribute* attributes, void** data, Address pointer);
FAKE_GPU_API Result cuMemcpyAsync(Address target, Address source, size_t bytes, Stream* stream);
FAKE_GPU_API Result cuMemcpyDtoHAsync_v2(void* target, Address source, size_t bytes, Stream* stream);
FAKE_GPU_API Result cuMemcpyHtoDAsync_v2(Address target, const void* source, size_t bytes, Stream* stream);
FAKE_GPU_API Result cuMemcpyDtoDAsync_v2(Address target, Address source, size_t bytes, Stream* stream);
FAKE_GPU_API Result cuMemsetD8Async(Address target, unsigned char value, size_t bytes, Stream* stream);

}  // extern "C"
}  // namespace gpu_fake
