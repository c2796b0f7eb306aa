// Whether users wait at once for what they ask for.
//
// An asynchronous request wakes the engine thread, so that it gets on while its user does something else. But many
// programs ask for one thing and wait for it in the next line. Then the user could do the work itself, and waking the
// engine thread only takes longer than a small collective does.
//
// So when this has happened many times in a row, it is expected to happen again: the engine thread is left asleep.
// Should the user not come after all, the engine thread, which only naps while the habit lasts, finds the request a
// moment later, and the habit is broken. Time is what the caller says it is, and never goes back.
#pragma once

#include <cstddef>
#include <cstdint>

namespace farandole::engine {

class Habit {
 public:
  // What the engine thread sleeps for at most while the habit lasts.
  static constexpr int kNapMs = 1;

  // A user asks for so many things in one call. True: it is expected to wait for it at once.
  bool ask(int64_t now_ns, size_t count) noexcept {
    const bool in_order = count == 1 && !asked_ && now_ns - last_ns_ < kForgottenNs;
    streak_ = in_order ? streak_ : 0;
    asked_ = true;
    last_ns_ = now_ns;
    return streak_ >= kEnough;
  }
  // A user waits. True: this makes it a habit.
  bool wait(int64_t now_ns) noexcept {
    if (!asked_) {
      return false;
    }
    asked_ = false;
    streak_ = now_ns - last_ns_ < kAtOnceNs ? streak_ + 1 : 0;
    return streak_ == kEnough;
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

  int streak_ = 0;       // how often in a row somebody asked for one thing and waited at once
  bool asked_ = false;   // and nobody has waited since
  int64_t last_ns_ = 0;  // when somebody asked last
};

}  // namespace farandole::engine
