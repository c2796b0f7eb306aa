// The wake-up heuristic: whether an asynchronous request needs to wake the engine thread.
//
// An asynchronous request wakes the engine thread, so that it proceeds while the user thread does something else. But
// many programs submit one request and wait for it in the next line. Then the user thread can do the work itself, and
// waking the engine thread takes longer than a small collective.
//
// So when this has happened many times in a row, the heuristic predicts that it happens again: the engine thread is
// left asleep. If the user thread submits or waits for something else, the engine thread is woken then; if it does
// nothing at all, the engine thread, which sleeps for a short time only while the prediction holds, finds the request a
// moment later. Either ends the prediction. Time is what the caller says it is, and never goes back.
//
// After a pause, the engine thread sleeps until it is woken, so that an idle program does not wake up again and again.
// The next requests wake it. If the prediction was right before the pause, it takes only a few of them to make it
// again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/completion.h"

namespace farandole::engine {

class WakeHeuristic {
 public:
  // The longest sleep of the engine thread while the prediction holds.
  static constexpr int kShortSleepMs = 1;

  // A user thread has submitted `count` requests in one call, of which this is the first. Returns whether the thread is
  // expected to wait for it at once.
  bool submit(int64_t now_ns, Handle first, size_t count) noexcept {
    const bool in_order = count == 1 && submitted_ == 0;
    const int most = !in_order ? 0 : now_ns - last_ns_ < kPauseNs ? kEnough : kEnough - kAgain;
    streak_ = std::min(streak_, most);
    submitted_ = first;
    last_ns_ = now_ns;
    return streak_ >= kEnough;
  }
  // Whether wait() has something to judge.
  bool expects_wait() const noexcept { return submitted_ != 0; }
  // A user thread waits for these. Returns whether the prediction was wrong, so that the engine thread must be woken
  // for the request.
  bool wait(int64_t now_ns, std::span<const Handle> handles) noexcept {
    if (!expects_wait()) {
      return false;
    }
    const bool was_predicted = streak_ >= kEnough;
    const bool at_once = now_ns - last_ns_ < kAtOnceNs && std::ranges::find(handles, submitted_) != handles.end();
    submitted_ = 0;
    streak_ = at_once ? std::min(streak_ + 1, kEnough) : 0;
    return was_predicted && streak_ == 0;
  }
  // A user thread did not wait for its request in time.
  void lapse() noexcept { streak_ = 0; }
  bool lasts(int64_t now_ns) const noexcept { return streak_ >= kEnough && now_ns - last_ns_ < kPauseNs; }
  // Whether the user thread that submitted something then should have waited for it by now.
  static bool is_late(int64_t submitted_ns, int64_t now_ns) noexcept { return now_ns - submitted_ns > kAtOnceNs; }

 private:
  static constexpr int kEnough = 16;
  // After a pause. With one, a program that makes one such request after each pause would be predicted, in vain: every
  // one of them has to wake the engine thread.
  static constexpr int kAgain = 2;
  static constexpr int64_t kAtOnceNs = 200'000;
  static constexpr int64_t kPauseNs = 10'000'000;

  int streak_ = 0;        // how often in a row a thread submitted one request and waited for it at once
  Handle submitted_ = 0;  // and no thread has waited since; 0: one has
  int64_t last_ns_ = 0;   // of the last submission
};

}  // namespace farandole::engine
