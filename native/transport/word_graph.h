// Who passes the word on to whom when a world has ended, and whose end is judged by whom: the same pairs.
//
// In small worlds all tell all. In larger ones, a worker tells those at a distance of a power of two, cyclically: about
// 2 log2(n) of them, so the messages of a loss grow with n log(n) instead of its square, and everyone is reached within
// log2(n)/2 steps or a few more. Distances are short and long, so the graph of the survivors stays in one piece when a
// whole rack of consecutive ranks is gone.
//
// A worker that has been told may close its connections before the word has come to those that it did not tell. To
// these, its end looks like a death. So they do not judge it: the ones that it would have told do, and pass it on.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace farandole::transport {

constexpr int kLargestWorldInWhichAllTellAll = 64;

// The distance of two ranks in the ring of all.
inline int distance_of(int rank, int other, int size) noexcept {
  const int distance = std::abs(rank - other);
  return std::min(distance, size - distance);
}

// Of two different ranks. Symmetric.
inline bool tell_each_other(int rank, int other, int size) noexcept {
  return size <= kLargestWorldInWhichAllTellAll ||
         std::has_single_bit(static_cast<unsigned>(distance_of(rank, other, size)));
}

}  // namespace farandole::transport
