// Whether the framework's thread that submits a call makes progress itself, for a moment.
//
// Then two threads need not be woken, which would take longer than a small collective. But if other ranks are late, the
// thread has better things to do. So after two unsuccessful attempts in a row there is a pause, ten times as long as
// the last one took, and twice as long after each further one.
//
// There is no pause after the first: a rank that pauses takes the slower way, and so do the others, so ranks should not
// pause in turns because the scheduler kept one of them waiting for a moment.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

namespace farandole::plugins {

class OwnProgress {
 public:
  using Clock = std::chrono::steady_clock;

  bool is_worth_it(Clock::time_point now) const {
    return now.time_since_epoch().count() >= pause_ends_.load(std::memory_order_relaxed);
  }
  // An attempt has ended, after this time; `done`: the call has ended with it.
  void attempted(bool done, Clock::time_point now, Clock::duration took) {
    const int vain = done ? 0 : std::min(vain_.load(std::memory_order_relaxed) + 1, kMostVain);
    vain_.store(vain, std::memory_order_relaxed);
    if (vain > 1) {
      pause_ends_.store((now + took * (10 << (vain - 2))).time_since_epoch().count(), std::memory_order_relaxed);
    }
  }

 private:
  static constexpr int kMostVain = 8;  // a pause of 640 times an attempt

  // Two threads that run one kernel may overwrite each other's: then a pause is missing or too short.
  std::atomic<int> vain_{0};  // attempts in a row
  std::atomic<Clock::rep> pause_ends_{0};
};

}  // namespace farandole::plugins
