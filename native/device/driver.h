// The driver of the GPUs. It is loaded when the first tensor on a GPU comes, and never unloaded.
//
// Threads: any thread.
#pragma once

#include <string>

#include "device/abi.h"

namespace farandole::device {

struct Driver {
  Functions functions;
  int version = 0;  // 13000 is CUDA 13.0
  int devices = 0;
};

// Throws Error(kUnavailable), with what to do, each time that it is called and there is no driver or no GPU.
const Driver& driver();

// Throws Error(kUnavailable) with the driver's own message unless the call succeeded. `what` describes the call, for
// people: "copying a tensor to the host".
void check(Status status, const char* what, Ordinal device);

}  // namespace farandole::device
