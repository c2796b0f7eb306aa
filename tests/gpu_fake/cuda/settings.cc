#include "cuda/settings.h"

#include <array>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

namespace gpu_fake {
namespace {

constexpr size_t kCounts = static_cast<size_t>(Count::kLast);
constexpr std::array<const char*, kCounts> kNames = {
    "host_waits",  "implicit_waits",    "queries",          "launches",       "copies",
    "memsets",     "event_records",     "stream_waits",     "stream_creates", "event_creates",
    "allocations", "async_allocations", "host_allocations", "captured",       "refusals"};

std::array<std::atomic<uint64_t>, kCounts>& counts() {
  static auto* const all = new std::array<std::atomic<uint64_t>, kCounts>{};
  return *all;
}

TimeMode mode_named(const std::string& name) {
  if (name == "eager" || name.empty()) {
    return TimeMode::kEager;
  }
  if (name == "lazy") {
    return TimeMode::kLazy;
  }
  if (name == "random") {
    return TimeMode::kRandom;
  }
  stop("FAKE_GPU_TIME is '" + name + "': use eager, lazy or random");
}

int number_at(const std::string& text, size_t position) {
  return static_cast<int>(std::strtol(text.c_str() + position, nullptr, 10));
}

struct Fault {
  int calls_before;
  Result code;
};

class Faults {
 public:
  Faults() {
    std::string rest = text("FAKE_GPU_FAULT");
    while (!rest.empty()) {
      const size_t comma = rest.find(',');
      const std::string one = rest.substr(0, comma);
      rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
      const size_t first = one.find(':');
      const size_t second = one.find(':', first + 1);
      if (first == std::string::npos || second == std::string::npos) {
        stop("FAKE_GPU_FAULT is '" + one + "': use <function>:<nth call>:<code>");
      }
      plan(one.substr(0, first), number_at(one, first + 1), number_at(one, second + 1));
    }
  }
  void plan(const std::string& function, int nth, int code) {
    const std::lock_guard lock(mutex_);
    planned_[function] = {nth - 1, static_cast<Result>(code)};
    any_ = true;
  }
  int hang(const std::string& function, bool hangs) {
    const std::lock_guard lock(mutex_);
    Hang& one = hangs_[function];
    one.hangs = hangs;
    any_ = true;
    gone_on_.notify_all();
    return one.calls;
  }
  void check(const char* function) {
    if (!any_) {
      return;
    }
    std::unique_lock lock(mutex_);
    if (const auto hanging = hangs_.find(function); hanging != hangs_.end()) {
      Hang& one = hanging->second;
      ++one.calls;
      gone_on_.wait(lock, [&] { return !one.hangs; });
      --one.calls;
    }
    const auto found = planned_.find(function);
    if (found != planned_.end() && found->second.calls_before-- == 0) {
      const Result code = found->second.code;
      planned_.erase(found);
      throw Refused{code, "as planned by the test"};
    }
  }

 private:
  std::mutex mutex_;
  struct Hang {
    bool hangs = false;
    int calls = 0;  // in it
  };
  std::condition_variable gone_on_;
  std::map<std::string, Fault> planned_;
  std::map<std::string, Hang> hangs_;
  std::atomic<bool> any_{false};
};

Faults& faults() {
  static auto* const all = new Faults;
  return *all;
}

}  // namespace

uint64_t number(const char* name, uint64_t otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : std::strtoull(value, nullptr, 10);
}

std::string text(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Time& settings_of_time() {
  static auto* const time =
      new Time{mode_named(text("FAKE_GPU_TIME")), static_cast<unsigned>(number("FAKE_GPU_SEED", 1)),
               static_cast<unsigned>(number("FAKE_GPU_DELAY_US", 3000))};
  return *time;
}

void set_time(const std::string& mode, unsigned seed, unsigned longest_delay_us) {
  Time& time = settings_of_time();
  time.mode = mode_named(mode);
  time.seed = seed;
  time.longest_delay_us = longest_delay_us;
  ++time.epoch;
}

void count(Count what) { counts()[static_cast<size_t>(what)].fetch_add(1, std::memory_order_relaxed); }

uint64_t counted(Count what) { return counts()[static_cast<size_t>(what)].load(std::memory_order_relaxed); }

std::optional<Count> count_named(const std::string& name) {
  for (size_t i = 0; i < kCounts; ++i) {
    if (name == kNames[i]) {
      return static_cast<Count>(i);
    }
  }
  return std::nullopt;
}

void reset_counts() {
  for (auto& one : counts()) {
    one = 0;
  }
}

void throw_planned_fault(const char* function) { faults().check(function); }

void plan_fault(const std::string& function, int nth, int code) { faults().plan(function, nth, code); }

int hang(const std::string& function, bool hangs) { return faults().hang(function, hangs); }

void stop(const std::string& why) {
  std::fprintf(stderr, "fake GPU: %s\n", why.c_str());
  std::abort();
}

}  // namespace gpu_fake
