#include "backend/mpi/library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace farandole::backend::mpi {
namespace {

// The one with the standard ABI first.
constexpr std::array kNames = {"libmpi_abi.so.1", "libmpi.so.12", "libmpi.so.40"};

[[noreturn]] void refuse(const std::string& why) { throw base::Error(base::Code::kUnavailable, why); }

template <typename Function>
Function function_of(void* handle, const char* name) {
  return reinterpret_cast<Function>(::dlsym(handle, name));
}

// Null: this process runs no such library. It can run one MPI only.
void* running(const char* name) {
  void* const handle = ::dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  int flag = 0;
  if (handle != nullptr) {
    if (const auto initialized = function_of<int (*)(int*)>(handle, "MPI_Initialized"); initialized != nullptr) {
      initialized(&flag);
    }
  }
  return flag != 0 ? handle : nullptr;
}

// <prefix>/lib/, where <prefix>/bin holds the first mpirun on the PATH; empty when there is none.
std::string beside_mpirun() {
  const char* const variable = std::getenv("PATH");
  std::string_view path = variable == nullptr ? "" : variable;
  while (!path.empty()) {
    const size_t end = std::min(path.find(':'), path.size());
    const std::string folder(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
    if (!folder.empty() && ::access((folder + "/mpirun").c_str(), X_OK) == 0) {
      return folder + "/../lib/";
    }
  }
  return {};
}

std::vector<std::string> candidates_for(const std::string& path) {
  if (!path.empty()) {
    return {path};
  }
  std::vector<std::string> candidates;
  for (const std::string& folder : {beside_mpirun(), std::string()}) {
    for (const char* const name : kNames) {
      if (std::string candidate = folder + name; std::ranges::find(candidates, candidate) == candidates.end()) {
        candidates.push_back(std::move(candidate));
      }
    }
  }
  return candidates;
}

// `used` becomes which one it is.
void* open(const std::string& path, std::string& used) {
  for (const char* const name : kNames) {
    if (void* const handle = running(name); handle != nullptr) {
      used = name;
      return handle;
    }
  }
  std::string told;
  for (const std::string& candidate : candidates_for(path)) {
    // Visible to all: Open MPI loads parts of itself that look for its names.
    if (void* const handle = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE); handle != nullptr) {
      used = candidate;
      return handle;
    }
    told += (told.empty() ? "" : "; ") + std::string(::dlerror());
  }
  refuse(
      "no MPI library can be loaded (" + told +
      "). Load the MPI that starts the job (on a cluster with `module load`; `pip install mpich` brings one), or set "
      "FARANDOLE_MPI_LIBRARY to the path of its libmpi_abi.so.1, libmpi.so.12 or libmpi.so.40");
}

std::string first_line_of(const Functions& functions) {
  std::array<char, kMaxLibraryVersionString> text{};
  int length = 0;
  functions.get_library_version(text.data(), &length);
  std::string line;
  for (const char letter : std::string_view(text.data())) {
    if (letter == '\n' || letter == ',') {
      break;
    }
    const bool is_blank = letter == ' ' || letter == '\t';
    if (!is_blank || (!line.empty() && line.back() != ' ')) {
      line += is_blank ? ' ' : letter;
    }
  }
  return line;
}

Constants constants_of(void* handle, const Library& library) {
  int major = -1;
  int minor = -1;
  if (const auto version = function_of<AbiGetVersion>(handle, "MPI_Abi_get_version"); version != nullptr) {
    version(&major, &minor);
  }
  if (major == kAbiVersion) {
    return kStandard;
  }
  if (major > kAbiVersion) {
    refuse(library.path + " has version " + std::to_string(major) + " of MPI's standard ABI, and farandole knows " +
           "version " + std::to_string(kAbiVersion) + "; load another one");
  }
  const auto address = [&](const char* name) { return reinterpret_cast<uintptr_t>(::dlsym(handle, name)); };
  if (address(kOpenMpiWorld) != 0) {
    Constants constants = kOpenMpi;
    constants.world = Comm{address(kOpenMpiWorld)};
    constants.byte = Datatype{address(kOpenMpiByte)};
    constants.errors_return = Errhandler{address(kOpenMpiErrorsReturn)};
    return constants;
  }
  for (const char* const name : {"MPICH", "Intel", "MVAPICH"}) {
    if (library.version.find(name) != std::string::npos) {
      return kMpich;
    }
  }
  refuse(library.path + " (" + library.version +
         ") has neither MPI's standard ABI nor that of MPICH or Open MPI; load another one");
}

}  // namespace

Library load_library(const std::string& path) {
  Library library{};
  void* const handle = open(path, library.path);
  for_each_function(library.functions, [&](const char* name, auto& function) {
    function = function_of<std::remove_reference_t<decltype(function)>>(handle, name);
    if (function == nullptr) {
      refuse(library.path + " has no " + name + ", so it is not a library of MPI 3 or newer; load another one");
    }
  });
  library.version = first_line_of(library.functions);
  library.constants = constants_of(handle, library);
  return library;
}

}  // namespace farandole::backend::mpi
