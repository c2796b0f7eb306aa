// Whether users wait at once for what they ask for.
//
// An asynchronous request wakes the engine thread, so that it gets on while its user does something else. But many
// programs ask for one thing and wait for it in the next line. Then the user could do the work itself, and waking the
// engine thread only takes longer than a small collective does.
//
// So when this has happened many times in a row, it is expected to happen again: the engine thread is left asleep.
// Should the user turn to something else after all, the engine thread is woken then; should it do nothing at all, the
// engine thread, which only naps while the habit lasts, finds the request a moment later. Either breaks the habit. Time
// is what the caller says it is, and never goes back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/completion.h"

namespace farandole::engine {

class Habit {
 public:
  // What the engine thread sleeps for at most while the habit lasts.
  static constexpr int kNapMs = 1;

  // A user has asked for so many things in one call, of which this is the first. True: it is expected to wait for it at
  // once.
  bool ask(int64_t now_ns, Handle first, size_t count) noexcept {
    const bool in_order = count == 1 && asked_for_ == 0 && now_ns - last_ns_ < kForgottenNs;
    streak_ = in_order ? streak_ : 0;
    asked_for_ = first;
    last_ns_ = now_ns;
    return streak_ >= kEnough;
  }
  // A user waits for these. True: this breaks the habit, and what was left to the user is the engine thread's again.
  bool wait(int64_t now_ns, std::span<const Handle> handles) noexcept {
    if (asked_for_ == 0) {
      return false;
    }
    const bool was_habit = streak_ >= kEnough;
    const bool at_once = now_ns - last_ns_ < kAtOnceNs && std::ranges::find(handles, asked_for_) != handles.end();
    asked_for_ = 0;
    streak_ = at_once ? std::min(streak_ + 1, kEnough) : 0;
    return was_habit && streak_ == 0;
  }
  // Somebody did not come.
  void lapse() noexcept { streak_ = 0; }
  bool lasts(int64_t now_ns) const noexcept { return streak_ >= kEnough && now_ns - last_ns_ < kForgottenNs; }
  // Whether who asked for something then should have come by now.
  static bool is_late(int64_t asked_ns, int64_t now_ns) noexcept { return now_ns - asked_ns > kAtOnceNs; }

 private:
  static constexpr int kEnough = 16;
  static constexpr int64_t kAtOnceNs = 200'000;
  static constexpr int64_t kForgottenNs = 10'000'000;

  int streak_ = 0;        // how often in a row somebody asked for one thing and waited for it at once
  Handle asked_for_ = 0;  // and nobody has waited since; 0: somebody has
  int64_t last_ns_ = 0;   // when somebody asked last
};

}  // namespace farandole::engine
