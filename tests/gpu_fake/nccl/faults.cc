#include "nccl/faults.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace nccl_fake {
namespace {

constexpr std::array<std::pair<const char*, Fault>, 6> kFaults = {{{"die", Fault::kDie},
                                                                   {"hang", Fault::kHang},
                                                                   {"async_error", Fault::kAsyncError},
                                                                   {"sticky", Fault::kSticky},
                                                                   {"abort_hangs", Fault::kAbortHangs},
                                                                   {"init_hangs", Fault::kInitHangs}}};
constexpr std::array<const char*, static_cast<size_t>(Count::kLast)> kCounts = {
    "groups", "operations", "inits", "aborts", "polls", "in_progress", "mismatches", "faults"};

constexpr int kAnyRank = -1;

struct Planned {
  int rank;
  int nth;
  Fault fault;
};

Step step_of(Fault fault) {
  switch (fault) {
    case Fault::kAbortHangs:
      return Step::kAbort;
    case Fault::kInitHangs:
      return Step::kInit;
    default:
      return Step::kGroup;
  }
}

struct State {
  std::mutex mutex;
  bool is_read = false;  // the environment
  std::vector<Planned> planned;
  std::map<std::pair<Step, int>, int> steps;
  std::deque<std::string> errors;  // all of them, because callers keep pointers
  std::array<std::atomic<uint64_t>, static_cast<size_t>(Count::kLast)> counts{};
};

State& state() {
  static auto* const one = new State;
  return *one;
}

[[noreturn]] void refuse(const std::string& text) {
  stop("FAKE_NCCL_FAULT is '" + text +
       "': rank<rank>:op<number>:<die, hang, async_error, sticky, abort_hangs or init_hangs>");
}

// The number behind a word, and what follows the colon behind it.
int take_number(const std::string& text, const std::string& word, size_t* at) {
  char* end = nullptr;
  if (text.compare(*at, word.size(), word) != 0) {
    refuse(text);
  }
  const char* const digits = text.c_str() + *at + word.size();
  const long number = std::strtol(digits, &end, 10);
  if (end == digits || *end != ':') {
    refuse(text);
  }
  *at = static_cast<size_t>(end - text.c_str()) + 1;
  return static_cast<int>(number);
}

Planned parse(const std::string& text) {
  size_t at = 0;
  const int rank = take_number(text, "rank", &at);
  const int nth = take_number(text, "op", &at);
  for (const auto& [name, fault] : kFaults) {
    if (text.substr(at) == name) {
      return {rank, nth, fault};
    }
  }
  refuse(text);
}

void plan_locked(State& all, const std::string& text) {
  all.planned.clear();
  all.steps.clear();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    all.planned.push_back(parse(text.substr(begin, end - begin)));
    begin = end + 1;
  }
}

}  // namespace

void plan_faults(const std::string& text) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  all.is_read = true;
  plan_locked(all, text);
}

Fault next_fault(Step step, int rank) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  if (!all.is_read) {
    all.is_read = true;
    const char* const text = std::getenv("FAKE_NCCL_FAULT");
    plan_locked(all, text == nullptr ? "" : text);
  }
  const int nth = ++all.steps[{step, rank}];
  const int nth_of_any = ++all.steps[{step, kAnyRank}];
  for (const Planned& planned : all.planned) {
    const bool is_now =
        planned.rank == kAnyRank ? planned.nth == nth_of_any : planned.rank == rank && planned.nth == nth;
    if (is_now && step_of(planned.fault) == step) {
      count(Count::kFaults);
      return planned.fault;
    }
  }
  return Fault::kNone;
}

void count(Count what, uint64_t times) { state().counts[static_cast<size_t>(what)] += times; }

uint64_t counted(const std::string& name) {
  for (size_t i = 0; i < kCounts.size(); ++i) {
    if (name == kCounts[i]) {
      return state().counts[i];
    }
  }
  return UINT64_MAX;
}

void reset_counts() {
  for (auto& one : state().counts) {
    one = 0;
  }
}

Result warn(Result code, const std::string& text) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  all.errors.push_back(text);
  if (std::getenv("NCCL_DEBUG") != nullptr) {
    std::fprintf(stderr, "fake NCCL WARN %s\n", text.c_str());
  }
  return code;
}

const char* last_error() {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  return all.errors.empty() ? "" : all.errors.back().c_str();
}

void stop(const std::string& why) {
  std::fprintf(stderr, "fake NCCL: %s\n", why.c_str());
  std::abort();
}

}  // namespace nccl_fake
