// The poll heuristic: whether a user thread that waits polls before it sleeps.
//
// A thread that polls yields its core between two looks. On a core of its own, that costs nothing, and it sees the
// result sooner than a thread that must be woken. If a few workers share the core, they take turns, and the result is
// there after one short turn of each. If many do, a poll is over before all of them had a turn: then each of them takes
// the core several times only to find nothing, and sleeps in the end.
//
// So if too many polls on a shared core were in vain, waits sleep at once. One in kTrial polls, to see whether that has
// changed.
#pragma once

#include <algorithm>
#include <cstdint>

namespace farandole::engine {

class PollHeuristic {
 public:
  // Returns whether the next wait should poll. If so, one of the next two functions is called after it.
  bool suggests_poll() noexcept {
    if (in_vain_ >= kTooMany && ++refused_ < kTrial) {
      return false;
    }
    refused_ = 0;
    return true;
  }
  void found() noexcept { in_vain_ = std::max(in_vain_ - 1, 0); }
  // It has found nothing, and has looked that many times in this time.
  void gave_up(int64_t looks, int64_t ns) noexcept {
    if (looks * kLookNs < ns) {
      in_vain_ = std::min(in_vain_ + kWeight, kTooMany + kWeight);
    }
  }

 private:
  // A look on a core that nothing else uses takes less.
  static constexpr int64_t kLookNs = 10'000;
  // A poll in vain counts as much as this number of polls that found something.
  static constexpr int kWeight = 4;
  static constexpr int kTooMany = 8;
  static constexpr int kTrial = 64;

  int in_vain_ = 0;  // polls in vain on a shared core, weighted, less those that found something
  int refused_ = 0;  // waits in a row that were not to poll
};

}  // namespace farandole::engine
