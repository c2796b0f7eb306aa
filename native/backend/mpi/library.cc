#include "backend/mpi/library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace farandole::backend::mpi {
namespace {

// Classical libraries, each with an ABI of its own.
struct Classical {
  const char* name;
  const char* whose;
};
constexpr std::array kClassical = {Classical{"libmpi.so.40", "Open MPI's"}, Classical{"libmpi.so.12", "MPICH's"}};

[[noreturn]] void refuse(const std::string& why) { throw base::Error(base::Code::kUnavailable, why); }

// <prefix>/lib, where <prefix>/bin holds the first mpirun on the PATH.
std::string beside_mpirun() {
  const char* const variable = std::getenv("PATH");
  std::string_view path = variable == nullptr ? "" : variable;
  while (!path.empty()) {
    const size_t end = std::min(path.find(':'), path.size());
    const std::string folder(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
    if (!folder.empty() && ::access((folder + "/mpirun").c_str(), X_OK) == 0) {
      return folder + "/../lib/" + kLibraryName;
    }
  }
  return {};
}

// A process can have one MPI only. Loading another one is harmless, starting it is not.
void require_no_other_mpi() {
  for (const auto& [name, whose] : kClassical) {
    void* const handle = ::dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) {
      continue;
    }
    int flag = 0;
    if (void* const symbol = ::dlsym(handle, "MPI_Initialized"); symbol != nullptr) {
      reinterpret_cast<int (*)(int*)>(symbol)(&flag);
    }
    ::dlclose(handle);
    if (flag != 0) {
      refuse(std::string("this process runs ") + name + " already, with " + whose +
             " own ABI, and two MPI libraries cannot run in one process: import farandole and call init() before what "
             "starts MPI (mpi4py does it when it is imported), or let that use " +
             kLibraryName + " as well");
    }
  }
}

std::string classical_here() {
  for (const auto& [name, whose] : kClassical) {
    if (void* const handle = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL); handle != nullptr) {
      ::dlclose(handle);
      return std::string(" (") + name + " is here, but has " + whose + " own ABI)";
    }
  }
  return {};
}

void* open(const std::string& path, std::string& used) {
  std::vector<std::string> candidates = {path};
  if (path.empty()) {
    candidates = {kLibraryName, beside_mpirun()};
  }
  std::string told;
  for (const std::string& candidate : candidates) {
    if (candidate.empty()) {
      continue;
    }
    if (void* const handle = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); handle != nullptr) {
      used = candidate;
      return handle;
    }
    told = ::dlerror();
  }
  refuse(
      "no MPI library with the standard ABI can be loaded: " + told + classical_here() +
      ". Load MPICH 5 or newer, or Open MPI 6 or newer built with the standard ABI (on a cluster with `module load`; "
      "`pip install mpich` brings one), or set FARANDOLE_MPI_LIBRARY to the path of its " +
      kLibraryName);
}

std::string first_line_of(const Functions& functions) {
  std::array<char, kMaxLibraryVersionString> text{};
  int length = 0;
  functions.get_library_version(text.data(), &length);
  std::string line;
  for (const char letter : std::string_view(text.data())) {
    if (letter == '\n') {
      break;
    }
    const bool is_blank = letter == ' ' || letter == '\t';
    if (!is_blank || (!line.empty() && line.back() != ' ')) {
      line += is_blank ? ' ' : letter;
    }
  }
  return line;
}

}  // namespace

Library load_library(const std::string& path) {
  require_no_other_mpi();
  Library library{};
  void* const handle = open(path, library.path);
  for_each_function(library.functions, [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    if (function == nullptr) {
      refuse(library.path + " has no " + name + ", so it is no library of MPI 5's standard ABI; load another one");
    }
  });
  int major = -1;
  int minor = -1;
  library.functions.abi_get_version(&major, &minor);
  if (major != kAbiVersion) {
    refuse(library.path + " has version " + std::to_string(major) + "." + std::to_string(minor) +
           " of MPI's standard ABI, and farandole knows version " + std::to_string(kAbiVersion) + "; load another one");
  }
  library.version = first_line_of(library.functions);
  return library;
}

}  // namespace farandole::backend::mpi
