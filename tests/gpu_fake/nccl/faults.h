// FAKE_NCCL_FAULT, the counters, and the last error.
#pragma once

#include <cstdint>
#include <string>

#include "nccl/abi.h"

namespace nccl_fake {

// What a fault is counted by: the nth group that a rank launches, its nth initialization, or its nth abort.
enum class Fault { kNone, kDie, kHang, kAsyncError, kSticky, kAbortHangs, kInitHangs };
enum class Step { kGroup, kInit, kAbort };

// The fault that is planned for this step of the rank, which is counted by this call: in this process, over all
// communicators.
Fault next_fault(Step step, int rank);
void plan_faults(const std::string& text);

enum class Count { kGroups, kOperations, kInits, kAborts, kPolls, kInProgress, kMismatches, kFaults, kLast };
void count(Count what, uint64_t times = 1);
uint64_t counted(const std::string& name);  // UINT64_MAX: unknown
void reset_counts();

// Writes a warning to stderr where NCCL would with NCCL_DEBUG=WARN, keeps it for ncclGetLastError, returns the code.
Result warn(Result code, const std::string& text);
const char* last_error();

// Ends the process: the program under test did what real NCCL answers with wrong numbers or a crash.
[[noreturn]] void stop(const std::string& why);

}  // namespace nccl_fake
