// NVIDIA's library for collectives among GPUs. It is loaded when it is needed for the first time, and never unloaded.
//
// Threads: any thread.
#pragma once

#include <string>

#include "backend/nccl/abi.h"
#include "base/error.h"

namespace farandole::backend::nccl {

struct Library {
  Functions functions;
  std::string path;
  int version = 0;  // 23007 is NCCL 2.30.7

  // Throws Error(kUnavailable) with NCCL's own message unless the call succeeded or is in progress. `what` describes
  // the call, for people: "an allreduce". The communicator may be null.
  void check(Result result, const std::string& what, Comm comm) const;
};

// The first library that could be loaded is used from then on, whatever path is passed later. Without a path, it is one
// that the process has loaded already, which is the framework's, or the one that the loader finds. Throws
// Error(kUnavailable), with what to do.
const Library& library(const std::string& path);

std::string version_text(int version);  // "2.30.7"

}  // namespace farandole::backend::nccl
