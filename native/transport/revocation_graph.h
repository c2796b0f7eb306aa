// The pairs of workers that pass the cause on to each other when their world has ended. The same pairs judge each
// other's end.
//
// In small worlds, every worker tells all others. In larger ones, a worker tells the ranks at a distance of a power of
// two, cyclically: about 2 log2(n) of them. So the number of messages after a loss grows with n log(n) instead of the
// square of n, and all workers are reached within log2(n)/2 steps or a few more. There are short distances and long
// ones, so the survivors stay connected when a whole rack of consecutive ranks is lost.
//
// A worker that has been told may close its connections before the cause has reached the workers that it does not tell.
// To these, its end looks like a death. So they do not judge it; the workers that it would have told do, and pass on
// their finding.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace farandole::transport {

constexpr int kLargestWorldInWhichAllTellAll = 64;

// The distance of two ranks in the ring of all ranks.
inline int distance_of(int rank, int other, int size) noexcept {
  const int distance = std::abs(rank - other);
  return std::min(distance, size - distance);
}

// Whether these two different ranks tell each other. Symmetric.
inline bool tell_each_other(int rank, int other, int size) noexcept {
  return size <= kLargestWorldInWhichAllTellAll ||
         std::has_single_bit(static_cast<unsigned>(distance_of(rank, other, size)));
}

}  // namespace farandole::transport
