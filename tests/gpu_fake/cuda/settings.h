// The settings of the fake GPU from the environment, its counters, and the calls that must fail.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "cuda/abi.h"

namespace gpu_fake {

// The error of an API call that does not succeed. `why` is written to stderr with FAKE_GPU_LOG=1.
struct Refused : std::exception {
  Refused(Result code_, std::string why_) : code(code_), why(std::move(why_)) {}
  const char* what() const noexcept override { return why.c_str(); }

  Result code;
  std::string why;
};

enum class TimeMode { kEager, kLazy, kRandom };

// When the streams run. A stream looks at it before each operation.
struct Time {
  std::atomic<TimeMode> mode;
  std::atomic<unsigned> seed;
  std::atomic<unsigned> longest_delay_us;
  std::atomic<unsigned> epoch{0};  // changes with each setting, so that streams begin their random numbers again
};
Time& settings_of_time();
void set_time(const std::string& mode, unsigned seed, unsigned longest_delay_us);

// A number from the environment, or `otherwise` if it is not set.
uint64_t number(const char* name, uint64_t otherwise);
std::string text(const char* name);

// Counters of what happened; those of what lives are counted where it lives.
enum class Count {
  kHostWaits,      // calls that made the host wait for a device, whatever the reason
  kImplicitWaits,  // of these: cuMemFree, cuMemFreeHost, and copies between a device and pageable memory
  kQueries,        // cuStreamQuery and cuEventQuery
  kLaunches,       // operations queued on streams, without event records and waits
  kCopies,
  kMemsets,
  kEventRecords,
  kStreamWaits,
  kStreamCreates,
  kEventCreates,
  kAllocations,
  kAsyncAllocations,
  kHostAllocations,
  kCaptured,  // operations on a stream under capture: they are never run
  kRefusals,  // calls that failed, without "not ready"
  kLast,
};
void count(Count what);
uint64_t counted(Count what);
std::optional<Count> count_named(const std::string& name);
void reset_counts();

// Waits while fake_gpu_hang lets this call hang; then throws the error that fake_gpu_fail or
// FAKE_GPU_FAULT=<function>:<nth>:<code>[,...] has planned for this call.
void throw_planned_fault(const char* function);
void plan_fault(const std::string& function, int nth, int code);
// Lets calls of this function hang from now on, or go on. Returns how many hang.
int hang(const std::string& function, bool hangs);

// Ends the process because the program under test, or the test, does what a real GPU does not forgive.
[[noreturn]] void stop(const std::string& why);

}  // namespace gpu_fake
