// Monotonic time. Wall clocks jump; nothing here reads one.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace farandole::base {

inline int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A point in time after which a wait gives up. A Deadline is made once and passed down, so that nested
// waits do not add up.
class Deadline {
 public:
  static Deadline after_seconds(double seconds) noexcept {
    // 10^9 seconds stand for "never": the arithmetic below must not overflow. A value that is not a number has passed
    // already.
    const double bounded = seconds > 0 ? std::min(seconds, 1e9) : 0.0;
    return Deadline(now_ns() + static_cast<int64_t>(bounded * 1e9));
  }

  bool passed() const noexcept { return now_ns() >= at_ns_; }
  int64_t left_ns() const noexcept { return std::max<int64_t>(0, at_ns_ - now_ns()); }
  // For poll(2): rounded up, so that a caller that waits this long finds the deadline passed.
  int left_ms() const noexcept {
    return static_cast<int>(std::min<int64_t>((left_ns() + 999'999) / 1'000'000, 1 << 30));
  }

 private:
  explicit Deadline(int64_t at_ns) noexcept : at_ns_(at_ns) {}
  int64_t at_ns_;
};

}  // namespace farandole::base
