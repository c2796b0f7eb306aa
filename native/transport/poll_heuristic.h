// The poll heuristic: whether a thread that waits polls before it sleeps.
//
// A thread that polls yields its core between two looks. On a core of its own, that costs nothing, and it sees the
// result sooner than a thread that must be woken. If a few workers share the core, they take turns, and the result is
// there after one short turn of each. If many do, a poll is over before all of them had a turn; and the kernel may give
// the core back to the thread that yields it, as it has used less of it than the others. Then a poll in vain takes the
// time from those that would bring the result, many times as long as a sleep and a wake-up take.
//
// Linux does so above all if each worker is in a session (autogroup) or a control group of its own: a yield puts a
// thread behind others of its group only.
//
// So if one in kWeight polls on a shared core or more were in vain, waits sleep at once. In trials they poll, to see
// whether that has changed. A trial is at the same decisions on all workers, which count them alike: a worker that
// polls finds nothing in time if it waits for workers that sleep.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/thread.h"

namespace farandole::transport {

// The looks of a poll that have found nothing so far.
class Poll {
 public:
  int64_t since_ns() const noexcept { return since_ns_; }
  bool has_begun() const noexcept { return looks_ > 0; }
  void count(int64_t now_ns) noexcept {
    ++looks_;
    if (looks_ == 1) {
      since_ns_ = now_ns;
    } else if (looks_ == kQuickLooks) {
      switches_ = base::involuntary_switches();
    }
  }
  // Returns whether the poll, which took that long, was on a core that others use as well: looks were slow, or the
  // thread had to leave its core. If yields have no effect, looks are quick there, too.
  bool was_on_shared_core(int64_t ns) const noexcept {
    return looks_ * kLookNs < ns || (looks_ >= kQuickLooks && base::involuntary_switches() != switches_);
  }

 private:
  // A look on a core that nothing else uses takes less.
  static constexpr int64_t kLookNs = 10'000;
  // Most polls that find something need fewer looks, and are spared a system call.
  static constexpr int64_t kQuickLooks = 16;

  int64_t since_ns_ = 0;
  int64_t looks_ = 0;
  int64_t switches_ = 0;  // involuntary ones of this thread, when it had looked that often
};

class PollHeuristic {
 public:
  // Returns whether a wait that belongs to the decision of this number should poll. If so, one of the next two
  // functions is called after it.
  bool suggests_poll(uint32_t decision) const noexcept { return in_vain_ < kTooMany || decision % kPeriod < kTrial; }
  void found() noexcept { in_vain_ = std::max(in_vain_ - 1, 0); }
  // It has found nothing.
  void gave_up(bool was_on_shared_core) noexcept {
    if (was_on_shared_core) {
      in_vain_ = std::min(in_vain_ + kWeight, kMost);
    }
  }

 private:
  // A poll in vain counts as much as this number of polls that found something: what it costs, divided by what they
  // save.
  static constexpr int kWeight = 16;
  static constexpr int kTooMany = 2 * kWeight;
  // The decisions of a trial, and from one to the next. A trial succeeds although its first polls are in vain.
  static constexpr uint32_t kTrial = 12;
  static constexpr uint32_t kPeriod = 2048;
  static constexpr int kMost = kTooMany + static_cast<int>(kTrial) / 2;

  int in_vain_ = 0;  // polls in vain on a shared core, weighted, less those that found something
};

}  // namespace farandole::transport
