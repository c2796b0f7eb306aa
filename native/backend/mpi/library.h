// Finds and loads an MPI library, and says why there is none.
#pragma once

#include <string>

#include "backend/mpi/abi.h"

namespace farandole::backend::mpi {

struct Library {
  Functions functions;
  Constants constants;
  std::string path;
  std::string version;  // one line: "MPICH Version: 5.0.2"
};

// `path` is that of the library, or empty: the one that runs in this process already, else one beside the first mpirun
// on the PATH, else one that the loader finds. It is never unloaded. Throws Error(kUnavailable) with what to do.
Library load_library(const std::string& path);

}  // namespace farandole::backend::mpi
