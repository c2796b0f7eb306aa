// The driver of the GPUs: loaded when a tensor of a GPU comes for the first time, and never unloaded.
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

// Throws Error(kUnavailable), with what to do, when there is no driver or no GPU, each time that it is called.
const Driver& driver();

// Throws Error(kUnavailable) with the driver's own words unless the call succeeded. `what` is what it was to do, for
// people: "copying a tensor to the host".
void check(Status status, const char* what, Ordinal device);

}  // namespace farandole::device
