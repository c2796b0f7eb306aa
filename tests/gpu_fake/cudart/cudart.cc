// The part of CUDA's runtime that PyTorch's CUDA build needs to begin, on the fake driver. A process preloads it, and
// PyTorch then finds a GPU. Compiled against the headers of the environment in which it is used (cuda_on_fake_gpu.py).
//
// Kernels do not run here: each launch is an error that names the kernel. tests/support/cuda_on_fake_gpu.py carries
// PyTorch's operators out on the CPU instead.
#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "cuda/api.h"
#include "cuda/hooks.h"

#define RUNTIME extern "C" __attribute__((visibility("default")))

namespace {

using gpu_fake::Address;

thread_local int t_device = 0;
thread_local cudaError_t t_last = cudaSuccess;

// The runtime's codes are the driver's.
cudaError_t done(int code) {
  if (code != gpu_fake::kSuccess && code != gpu_fake::kNotReady) {
    t_last = static_cast<cudaError_t>(code);
  }
  return static_cast<cudaError_t>(code);
}

gpu_fake::Context* context_of(int device) {
  // Never destroyed, as the rest: PyTorch's threads go on while the process exits.
  static std::mutex& mutex = *new std::mutex;
  static auto& contexts = *new std::map<int, gpu_fake::Context*>;
  const std::lock_guard lock(mutex);
  gpu_fake::Context*& context = contexts[device];
  if (context == nullptr) {
    gpu_fake::cuDevicePrimaryCtxRetain(&context, device);
  }
  return context;
}

// The calling thread's device, as the runtime makes it current by itself.
template <typename Call>
cudaError_t on_device(Call&& call) {
  gpu_fake::Context* const wanted = context_of(t_device);
  gpu_fake::Context* current = nullptr;
  gpu_fake::cuCtxGetCurrent(&current);
  if (current != wanted) {
    gpu_fake::cuCtxSetCurrent(wanted);
  }
  return done(call());
}

gpu_fake::Stream* driver_stream(cudaStream_t stream) { return reinterpret_cast<gpu_fake::Stream*>(stream); }
gpu_fake::Event* driver_event(cudaEvent_t event) { return reinterpret_cast<gpu_fake::Event*>(event); }
Address address_of(const void* memory) { return reinterpret_cast<Address>(memory); }

std::map<const void*, std::string>& kernels() {
  static auto& names = *new std::map<const void*, std::string>;
  return names;
}

cudaError_t refuse_launch(const void* function) {
  const auto found = kernels().find(function);
  int status = 0;
  char* const name =
      found == kernels().end() ? nullptr : abi::__cxa_demangle(found->second.c_str(), nullptr, nullptr, &status);
  std::fprintf(stderr, "fake CUDA runtime: the kernel %s cannot run here\n", name == nullptr ? "?" : name);
  std::free(name);
  return done(cudaErrorNotSupported);
}

}  // namespace

// --- devices

RUNTIME cudaError_t cudaGetDeviceCount(int* count) {
  gpu_fake::cuInit(0);
  return done(gpu_fake::cuDeviceGetCount(count));
}
RUNTIME cudaError_t cudaGetDevice(int* device) {
  *device = t_device;
  return cudaSuccess;
}
RUNTIME cudaError_t cudaSetDevice(int device) {
  t_device = device;
  return on_device([] { return 0; });
}
RUNTIME cudaError_t cudaDriverGetVersion(int* version) { return done(gpu_fake::cuDriverGetVersion(version)); }
RUNTIME cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
RUNTIME cudaError_t cudaGetLastError() {
  const cudaError_t last = t_last;
  t_last = cudaSuccess;
  return last;
}
RUNTIME cudaError_t cudaPeekAtLastError() { return t_last; }
RUNTIME cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  std::memset(properties, 0, sizeof *properties);
  std::snprintf(properties->name, sizeof properties->name, "fake GPU %d", device);
  properties->major = 9;
  properties->multiProcessorCount = 4;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxGridSize[0] = 1 << 30;
  properties->regsPerMultiprocessor = 65536;
  properties->sharedMemPerBlock = 49152;
  return done(gpu_fake::cuDeviceTotalMem_v2(&properties->totalGlobalMem, device));
}
RUNTIME cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 0;
  return cudaSuccess;
}
RUNTIME cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return on_device([&] { return gpu_fake::cuCtxGetStreamPriorityRange(least, greatest); });
}
RUNTIME cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return done(gpu_fake::cuDeviceCanAccessPeer(can, device, peer));
}
RUNTIME cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  return done(gpu_fake::cuDeviceGetPCIBusId(id, length, device));
}
RUNTIME cudaError_t cudaDeviceSynchronize() { return on_device(gpu_fake::cuCtxSynchronize); }

// --- memory

RUNTIME cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return on_device([&] { return gpu_fake::cuMemAlloc_v2(reinterpret_cast<Address*>(memory), bytes); });
}
RUNTIME cudaError_t cudaFree(void* memory) {
  return memory == nullptr ? cudaSuccess : on_device([&] { return gpu_fake::cuMemFree_v2(address_of(memory)); });
}
RUNTIME cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return on_device([&] { return gpu_fake::cuMemGetInfo_v2(free, total); });
}
RUNTIME cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return on_device([&] { return gpu_fake::cuMemHostAlloc(memory, bytes, 1); });
}
RUNTIME cudaError_t cudaFreeHost(void* memory) {
  return on_device([&] { return gpu_fake::cuMemFreeHost(memory); });
}
RUNTIME cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind,
                                    cudaStream_t stream) {
  return on_device(
      [&] { return gpu_fake::cuMemcpyAsync(address_of(target), address_of(source), bytes, driver_stream(stream)); });
}
RUNTIME cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t begun = cudaMemcpyAsync(target, source, bytes, kind, nullptr);
  return begun != cudaSuccess ? begun : on_device([] { return gpu_fake::cuStreamSynchronize(nullptr); });
}
RUNTIME cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return on_device([&] {
    return gpu_fake::cuMemsetD8Async(address_of(memory), static_cast<unsigned char>(value), bytes,
                                     driver_stream(stream));
  });
}
RUNTIME cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  std::memset(attributes, 0, sizeof *attributes);
  unsigned type = 0;
  if (gpu_fake::cuPointerGetAttribute(&type, gpu_fake::kPointerMemoryType, address_of(memory)) == gpu_fake::kSuccess) {
    attributes->type = type == gpu_fake::kMemoryDevice ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    attributes->device = gpu_fake::fake_gpu_device_of(address_of(memory));
    attributes->devicePointer = const_cast<void*>(memory);
  }
  return cudaSuccess;
}

// --- streams

RUNTIME cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return on_device([&] {
    return gpu_fake::cuStreamCreateWithPriority(reinterpret_cast<gpu_fake::Stream**>(stream), flags, priority);
  });
}
RUNTIME cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
RUNTIME cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
RUNTIME cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return on_device([&] { return gpu_fake::cuStreamDestroy_v2(driver_stream(stream)); });
}
RUNTIME cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return on_device([&] { return gpu_fake::cuStreamSynchronize(driver_stream(stream)); });
}
RUNTIME cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return on_device([&] { return gpu_fake::cuStreamQuery(driver_stream(stream)); });
}
RUNTIME cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return on_device([&] { return gpu_fake::cuStreamWaitEvent(driver_stream(stream), driver_event(event), flags); });
}
RUNTIME cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return on_device([&] { return gpu_fake::cuStreamGetPriority(driver_stream(stream), priority); });
}
RUNTIME cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
RUNTIME cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id,
                                             cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                             size_t*) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) {
    *id = 0;
  }
  return cudaSuccess;
}
RUNTIME cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

// --- events

RUNTIME cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return on_device([&] { return gpu_fake::cuEventCreate(reinterpret_cast<gpu_fake::Event**>(event), flags); });
}
RUNTIME cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
RUNTIME cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return on_device([&] { return gpu_fake::cuEventDestroy_v2(driver_event(event)); });
}
RUNTIME cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return on_device([&] { return gpu_fake::cuEventRecord(driver_event(event), driver_stream(stream)); });
}
RUNTIME cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
RUNTIME cudaError_t cudaEventQuery(cudaEvent_t event) {
  return on_device([&] { return gpu_fake::cuEventQuery(driver_event(event)); });
}
RUNTIME cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return on_device([&] { return gpu_fake::cuEventSynchronize(driver_event(event)); });
}
RUNTIME cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return on_device([&] { return gpu_fake::cuEventElapsedTime(milliseconds, driver_event(start), driver_event(end)); });
}

// --- kernels

RUNTIME void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
RUNTIME void __cudaRegisterFatBinaryEnd(void**) {}
RUNTIME void __cudaUnregisterFatBinary(void**) {}
RUNTIME void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
RUNTIME void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*, void*, void*,
                                    void*, int*) {
  kernels()[function] = name;
}
RUNTIME cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
RUNTIME cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse_launch(kernel);
}
RUNTIME cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse_launch(function);
}
RUNTIME cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* function, void**) {
  return refuse_launch(function);
}
RUNTIME cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}
RUNTIME cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t,
                                                                           unsigned) {
  *blocks = 2;
  return cudaSuccess;
}

// --- what PyTorch links of NCCL, and the fake NCCL does not have

#define NOT_THERE(NAME) \
  RUNTIME int NAME() { return 5; }  // ncclInvalidUsage

NOT_THERE(ncclAlltoAll)
NOT_THERE(ncclCommDeregister)
NOT_THERE(ncclCommGetUniqueId)
NOT_THERE(ncclCommGrow)
NOT_THERE(ncclCommInitAll)
NOT_THERE(ncclCommInitRankScalable)
NOT_THERE(ncclCommMemStats)
NOT_THERE(ncclCommRegister)
NOT_THERE(ncclCommResume)
NOT_THERE(ncclCommRevoke)
NOT_THERE(ncclCommShrink)
NOT_THERE(ncclCommSplit)
NOT_THERE(ncclCommSuspend)
NOT_THERE(ncclCommWindowDeregister)
NOT_THERE(ncclCommWindowRegister)
NOT_THERE(ncclDevCommCreate)
NOT_THERE(ncclDevCommDestroy)
NOT_THERE(ncclGather)
NOT_THERE(ncclGetLsaMultimemDevicePointer)
NOT_THERE(ncclGetPeerDevicePointer)
NOT_THERE(ncclGroupSimulateEnd)
NOT_THERE(ncclMemAlloc)
NOT_THERE(ncclMemFree)
NOT_THERE(ncclPutSignal)
NOT_THERE(ncclSignal)
NOT_THERE(ncclWaitSignal)
NOT_THERE(ncclWinGetUserPtr)
