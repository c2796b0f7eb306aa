#include "device/driver.h"

#include <dlfcn.h>

#include <type_traits>

#include "base/error.h"

namespace farandole::device {
namespace {

// The first version whose driver API has all of the functions: cuDeviceGetUuid_v2 came with it.
constexpr int kOldestVersion = 11040;

[[noreturn]] void refuse(const std::string& why) { throw base::Error(base::Code::kUnavailable, why); }

std::string words_of(const Functions& functions, Status status) {
  const char* name = nullptr;
  const char* text = nullptr;
  functions.error_name(status, &name);
  functions.error_string(status, &text);
  if (name == nullptr) {
    return "error " + std::to_string(static_cast<int>(status));
  }
  return std::string(name) + (text == nullptr ? "" : " (" + std::string(text) + ")");
}

Driver load() {
  void* const handle = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    refuse("NVIDIA's driver cannot be loaded (" + std::string(::dlerror()) +
           "). Install the driver of the GPU, or start the container with access to it");
  }
  Driver driver{};
  for_each_function(driver.functions, [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    if (function == nullptr) {
      refuse("NVIDIA's driver has no " + std::string(name) + ": it is too old. Install one for CUDA 11.4 or newer");
    }
  });
  if (const Status status = driver.functions.init(0); status != Status::kSuccess) {
    refuse("NVIDIA's driver does not start: " + words_of(driver.functions, status) + ". Run nvidia-smi to see why");
  }
  driver.functions.driver_get_version(&driver.version);
  if (driver.version < kOldestVersion) {
    refuse("NVIDIA's driver is of CUDA " + std::to_string(driver.version / 1000) + "." +
           std::to_string(driver.version % 1000 / 10) + ", which is too old. Install one for CUDA 11.4 or newer");
  }
  driver.functions.device_get_count(&driver.devices);
  if (driver.devices == 0) {
    refuse("NVIDIA's driver shows no GPU to this process. Check CUDA_VISIBLE_DEVICES and the output of nvidia-smi");
  }
  return driver;
}

}  // namespace

const Driver& driver() {
  static const Driver loaded = load();  // if it throws, the next call tries again
  return loaded;
}

void check(Status status, const char* what, Ordinal device) {
  if (status != Status::kSuccess) {
    refuse("GPU " + std::to_string(device) + ": " + what + " failed with " + words_of(driver().functions, status));
  }
}

}  // namespace farandole::device
