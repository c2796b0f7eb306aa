// Functions with which tests control the fake NCCL.
#pragma once

#include <cstdint>

#define FAKE_NCCL_API __attribute__((visibility("default")))

namespace nccl_fake {
extern "C" {

// Plans faults as FAKE_NCCL_FAULT does; see tests/gpu_fake/README.md. "" forgets what has not happened yet.
FAKE_NCCL_API void fake_nccl_fault(const char* faults);
// "groups" (launched: each call outside a group is one), "operations", "inits", "aborts", "polls" (of async errors),
// "in_progress" (launches that were not over when the call returned), "mismatches" (of ranks whose hub is in this
// process), "faults" (that have happened), "live_comms"; UINT64_MAX: no such name.
FAKE_NCCL_API uint64_t fake_nccl_count(const char* name);
FAKE_NCCL_API void fake_nccl_reset_counts();

}  // extern "C"
}  // namespace nccl_fake
