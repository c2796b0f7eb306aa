// Devices, contexts, errors.
#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/api.h"
#include "cuda/call.h"

namespace gpu_fake {
namespace {

std::atomic<bool> g_forked{false};

struct ErrorText {
  Result code;
  const char* name;
  const char* text;
};

// The texts are our own, and should not be compared.
constexpr ErrorText kErrors[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kDeinitialized, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kEccUncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {kContextIsDestroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {kHostMemoryAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "memory is already registered"},
    {kHostMemoryNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "memory is not registered"},
    {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {kNotPermitted, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {kStreamCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted while a stream is captured"},
    {kStreamCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "the capture failed earlier"},
    {kStreamCaptureUnmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "the stream is not captured"},
    {kStreamCaptureImplicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "would depend on a stream under capture"},
    {kCapturedEvent, "CUDA_ERROR_CAPTURED_EVENT", "the event was last recorded in a capture"},
    {kUnknown, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const ErrorText* find_error(Result code) {
  const auto* const found =
      std::find_if(std::begin(kErrors), std::end(kErrors), [&](const ErrorText& error) { return error.code == code; });
  return found == std::end(kErrors) ? nullptr : found;
}

void copy_text(char* target, int length, const std::string& text) {
  require(target);
  if (length <= 0) {
    throw Refused{kInvalidValue, "the text has no room"};
  }
  std::snprintf(target, static_cast<size_t>(length), "%s", text.c_str());
}

// "<domain>:<bus>:<device>.0". Devices of another FAKE_GPU_HOST may have the same, as in reality.
int bus_of(Device device) { return 0x10 + (text("FAKE_GPU_MIG") == "1" ? 0 : Gpu::get().number_of(device)); }

// A thread that uses CUDA at the end of a process sees nothing of this: the state is never destroyed.
[[gnu::destructor]] void report_leaks() {
  const std::string wanted = text("FAKE_GPU_LEAKS");
  if (wanted.empty() || g_forked) {
    return;
  }
  const Gpu::Live live = Gpu::get().live();
  if (live.allocations + live.host_allocations + live.streams + live.events + live.retained == 0) {
    return;
  }
  std::fprintf(stderr,
               "fake GPU: left at exit: %zu device allocations, %zu pinned ones, %zu streams, %zu events, contexts "
               "retained %zu times\n",
               live.allocations, live.host_allocations, live.streams, live.events, live.retained);
  if (wanted == "fail") {
    std::_Exit(86);
  }
}

}  // namespace

bool is_fork_of_user() { return g_forked; }

void log_refusal(const char* function, const Refused& refused) {
  count(Count::kRefusals);
  static const bool is_wanted = number("FAKE_GPU_LOG", 0) != 0;
  if (is_wanted) {
    const ErrorText* const error = find_error(refused.code);
    std::fprintf(stderr, "fake GPU: %s: %s: %s\n", function, error == nullptr ? "?" : error->name, refused.why.c_str());
  }
}

extern "C" {

Result cuInit(unsigned flags) {
  return call(
      "cuInit",
      [&](Gpu& gpu) {
        if (flags != 0) {
          throw Refused{kInvalidValue, "flags must be 0"};
        }
        gpu.initialize();
        static const int registered = ::pthread_atfork(nullptr, nullptr, [] { g_forked = true; });
        (void)registered;
      },
      false);
}

Result cuDriverGetVersion(int* version) {
  return call(
      "cuDriverGetVersion",
      [&](Gpu&) {
        require(version);
        *version = static_cast<int>(number("FAKE_GPU_DRIVER_VERSION", 13000));
      },
      false);
}

Result cuGetErrorName(Result code, const char** text) {
  const ErrorText* const error = find_error(code);
  *text = error == nullptr ? nullptr : error->name;
  return error == nullptr ? kInvalidValue : kSuccess;
}

Result cuGetErrorString(Result code, const char** text) {
  const ErrorText* const error = find_error(code);
  *text = error == nullptr ? nullptr : error->text;
  return error == nullptr ? kInvalidValue : kSuccess;
}

Result cuDeviceGetCount(int* count) {
  return call("cuDeviceGetCount", [&](Gpu& gpu) {
    require(count);
    *count = gpu.devices();
  });
}

Result cuDeviceGet(Device* device, int ordinal) {
  return call("cuDeviceGet", [&](Gpu& gpu) {
    require(device);
    *device = gpu.context_of(ordinal).device;
  });
}

Result cuDeviceGetName(char* name, int length, Device device) {
  return call("cuDeviceGetName", [&](Gpu& gpu) {
    gpu.context_of(device);
    copy_text(name, length, "Fake GPU");
  });
}

Result cuDeviceGetUuid_v2(Uuid* uuid, Device device) {
  return call("cuDeviceGetUuid_v2", [&](Gpu& gpu) {
    require(uuid);
    gpu.context_of(device);
    const std::string host = text("FAKE_GPU_HOST");
    uint64_t hash = 1469598103934665603ULL;
    for (const char letter : host) {
      hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211ULL;
    }
    const auto number = static_cast<uint64_t>(gpu.number_of(device));
    std::memcpy(uuid->bytes, &hash, sizeof hash);
    std::memcpy(uuid->bytes + sizeof hash, &number, sizeof number);
  });
}

Result cuDeviceGetPCIBusId(char* id, int length, Device device) {
  return call("cuDeviceGetPCIBusId", [&](Gpu& gpu) {
    gpu.context_of(device);
    char text[16];
    std::snprintf(text, sizeof text, "0000:%02X:00.0", static_cast<unsigned>(bus_of(device)) & 0xFF);
    copy_text(id, length, text);
  });
}

Result cuDeviceGetAttribute(int* value, DeviceAttribute attribute, Device device) {
  return call("cuDeviceGetAttribute", [&](Gpu& gpu) {
    require(value);
    gpu.context_of(device);
    switch (attribute) {
      case kDeviceMaxThreadsPerBlock:
        *value = 1024;
        return;
      case kDeviceWarpSize:
        *value = 32;
        return;
      case kDeviceMultiprocessorCount:
        *value = 4;
        return;
      case kDevicePciBusId:
        *value = bus_of(device);
        return;
      case kDevicePciDeviceId:
      case kDevicePciDomainId:
      case kDeviceComputeCapabilityMinor:
        *value = 0;
        return;
      case kDeviceComputeCapabilityMajor:
        *value = 9;
        return;
      case kDeviceAsyncEngineCount:
        *value = 2;
        return;
      case kDeviceCanMapHostMemory:
      case kDeviceUnifiedAddressing:
      case kDeviceMemoryPoolsSupported:
        *value = 1;
        return;
    }
    throw Refused{kInvalidValue, "the fake GPU does not know attribute " + std::to_string(attribute)};
  });
}

Result cuDeviceTotalMem_v2(size_t* bytes, Device device) {
  return call("cuDeviceTotalMem_v2", [&](Gpu& gpu) {
    require(bytes);
    gpu.context_of(device);
    *bytes = gpu.memory().bytes_each();
  });
}

Result cuDeviceCanAccessPeer(int* can, Device device, Device peer) {
  return call("cuDeviceCanAccessPeer", [&](Gpu& gpu) {
    require(can);
    gpu.context_of(device);
    gpu.context_of(peer);
    *can = device == peer ? 0 : 1;
  });
}

Result cuDevicePrimaryCtxRetain(Context** context, Device device) {
  return call("cuDevicePrimaryCtxRetain", [&](Gpu& gpu) {
    require(context);
    *context = gpu.retain(device);
  });
}

Result cuDevicePrimaryCtxRelease_v2(Device device) {
  return call("cuDevicePrimaryCtxRelease_v2", [&](Gpu& gpu) { gpu.release(device); });
}

Result cuDevicePrimaryCtxGetState(Device device, unsigned* flags, int* active) {
  return call("cuDevicePrimaryCtxGetState", [&](Gpu& gpu) {
    require(flags);
    require(active);
    *flags = 0;
    *active = gpu.is_active(&gpu.context_of(device)) ? 1 : 0;
  });
}

Result cuCtxPushCurrent_v2(Context* context) {
  return call("cuCtxPushCurrent_v2", [&](Gpu& gpu) {
    if (!gpu.is_active(context)) {
      throw Refused{kContextIsDestroyed, "the context was released"};
    }
    stack_of_contexts().push_back(context);
  });
}

Result cuCtxPopCurrent_v2(Context** context) {
  return call("cuCtxPopCurrent_v2", [&](Gpu&) {
    auto& stack = stack_of_contexts();
    if (stack.empty()) {
      throw Refused{kInvalidContext, "this thread has no current context"};
    }
    if (context != nullptr) {
      *context = stack.back();
    }
    stack.pop_back();
  });
}

Result cuCtxGetCurrent(Context** context) {
  return call("cuCtxGetCurrent", [&](Gpu&) {
    require(context);
    const auto& stack = stack_of_contexts();
    *context = stack.empty() ? nullptr : stack.back();
  });
}

Result cuCtxSetCurrent(Context* context) {
  return call("cuCtxSetCurrent", [&](Gpu& gpu) {
    auto& stack = stack_of_contexts();
    if (context != nullptr && !gpu.is_active(context)) {
      throw Refused{kContextIsDestroyed, "the context was released"};
    }
    if (!stack.empty()) {
      stack.pop_back();
    }
    if (context != nullptr) {
      stack.push_back(context);
    }
  });
}

Result cuCtxGetDevice(Device* device) {
  return call("cuCtxGetDevice", [&](Gpu& gpu) {
    require(device);
    *device = gpu.current().device;
  });
}

Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return call("cuCtxGetStreamPriorityRange", [&](Gpu& gpu) {
    gpu.current();
    if (least != nullptr) {
      *least = 0;
    }
    if (greatest != nullptr) {
      *greatest = -5;
    }
  });
}

}  // extern "C"
}  // namespace gpu_fake
