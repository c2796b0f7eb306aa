// Finds and loads a library with MPI's standard ABI, and says why there is none.
#pragma once

#include <string>

#include "backend/mpi/abi.h"

namespace farandole::backend::mpi {

inline constexpr const char* kLibraryName = "libmpi_abi.so.1";

struct Library {
  Functions functions;
  std::string path;
  std::string version;  // one line: "MPICH Version: 5.0.2"
};

// `path` is that of the library, or empty: the one that the process has loaded already or that the loader finds, else
// the one of the first mpirun on the PATH. It is never unloaded. Throws Error(kUnavailable) with what to do.
Library load_library(const std::string& path);

}  // namespace farandole::backend::mpi
