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

// Returns the driver. Throws Error(kUnavailable), with the next step for the user, if there is no driver or no GPU; the
// next call tries again.
const Driver& driver();

// Throws Error(kUnavailable) with the driver's own message unless the call succeeded. `what` describes the call, for
// people: "copying a tensor to the host".
void check(Status status, const char* what, Ordinal device);

}  // namespace farandole::device
