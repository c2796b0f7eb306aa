#include "backend/nccl/library.h"

#include <dlfcn.h>

#include <type_traits>

namespace farandole::backend::nccl {
namespace {

constexpr const char* kName = "libnccl.so.2";
// The first version whose non-blocking communicators are reliable.
constexpr int kOldestVersion = 21900;
constexpr const char* kAdvice =
    "Install it (PyTorch for CUDA brings it, and so does `pip install nvidia-nccl-cu12`, or -cu13), or set "
    "FARANDOLE_NCCL_LIBRARY to the path of its libnccl.so.2";

[[noreturn]] void refuse(const std::string& why) { throw base::Error(base::Code::kUnavailable, why); }

void* open(const std::string& path, std::string& used) {
  used = kName;
  if (!path.empty()) {
    used = path;
  } else if (void* const loaded = ::dlopen(kName, RTLD_NOW | RTLD_NOLOAD); loaded != nullptr) {
    return loaded;
  }
  void* const handle = ::dlopen(used.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    refuse("NCCL cannot be loaded (" + std::string(::dlerror()) + "). " + kAdvice);
  }
  return handle;
}

Library load(const std::string& path) {
  Library library{};
  void* const handle = open(path, library.path);
  for_each_function(library.functions, [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    if (function == nullptr) {
      refuse(library.path + " has no " + name + ": it is too old. NCCL 2.19 or newer is needed. " + kAdvice);
    }
  });
  library.functions.get_version(&library.version);
  if (library.version < kOldestVersion) {
    refuse(library.path + " is NCCL " + version_text(library.version) + ", and 2.19 or newer is needed. " + kAdvice);
  }
  return library;
}

}  // namespace

void Library::check(Result result, const std::string& what, Comm comm) const {
  if (result == Result::kSuccess || result == Result::kInProgress) {
    return;
  }
  const char* const last = functions.get_last_error(comm);
  refuse("NCCL: " + what + " failed with '" + functions.get_error_string(result) + "'" +
         (last == nullptr || *last == '\0' ? "" : " (" + std::string(last) + ")"));
}

const Library& library(const std::string& path) {
  static const Library loaded = load(path);  // if it throws, the next call tries again
  return loaded;
}

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace farandole::backend::nccl
