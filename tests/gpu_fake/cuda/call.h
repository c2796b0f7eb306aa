// The beginning and the end of each function of the driver's API.
#pragma once

#include "cuda/gpu.h"
#include "cuda/settings.h"

namespace gpu_fake {

// Whether this process was forked from one that had called cuInit: nothing of the driver works in it.
bool is_fork_of_user();
void log_refusal(const char* function, const Refused& refused);

// Runs the body, which throws the error of a failed call.
template <typename Body>
Result call(const char* function, Body&& body, bool needs_init = true) {
  try {
    if (is_fork_of_user()) {
      throw Refused{kNotInitialized, "this process was forked after CUDA was used"};
    }
    if (needs_init && !Gpu::get().is_initialized()) {
      throw Refused{kNotInitialized, "cuInit has not been called"};
    }
    throw_planned_fault(function);
    body(Gpu::get());
    return kSuccess;
  } catch (const Refused& refused) {
    if (refused.code != kNotReady) {
      log_refusal(function, refused);
    }
    return refused.code;
  }
}

// Throws "invalid value" for a null pointer to a result.
template <typename Pointer>
void require(Pointer* pointer) {
  if (pointer == nullptr) {
    throw Refused{kInvalidValue, "a pointer to a result is null"};
  }
}

}  // namespace gpu_fake
