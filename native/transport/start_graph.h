// Between which workers there are links before their world forms, and the tree along which it forms.
//
// In small worlds, every worker has a link to every other one from the start. In larger ones, it has links to the
// workers that it tells of the world's end (revocation_graph.h) and to those of its host; other links are made when
// they are needed first (late_links.h). So the number of connections grows with n log(n).
//
// A worker tells its parent in the tree that it and all workers below it are ready; rank 0 then tells all, the same way
// back, that the world has formed. Each edge of the tree is one of those links.
#pragma once

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include "transport/revocation_graph.h"

namespace farandole::transport {

// Requires that not all tell all. The ranks 1, 2, 4 and so on below a rank are linked to it: the lowest bit of a rank
// is cleared, unless that way around the ring would be longer than the other one.
inline int parent_in_large_world(int rank, int size) noexcept {
  const auto lowest_bit = static_cast<unsigned>(rank) & (~static_cast<unsigned>(rank) + 1);
  return rank - static_cast<int>(std::min(lowest_bit, std::bit_floor(static_cast<unsigned>(size) / 2)));
}

// Requires rank > 0.
inline int start_parent(int rank, int size) noexcept {
  return size <= kLargestWorldInWhichAllTellAll ? 0 : parent_in_large_world(rank, size);
}

// How many edges lie between a rank and rank 0.
inline int start_depth(int rank, int size) noexcept {
  int depth = 0;
  for (; rank > 0; rank = start_parent(rank, size)) {
    ++depth;
  }
  return depth;
}

// No way from a rank to rank 0 has more edges.
inline int deepest_start(int size) noexcept {
  return size <= kLargestWorldInWhichAllTellAll ? 1 : std::bit_width(static_cast<unsigned>(size));
}

// The ranks to which this one is linked from the start, in ascending order. `hosts`: see hosts.h.
inline std::vector<int> start_peers(int rank, std::span<const int> hosts) {
  const int size = static_cast<int>(hosts.size());
  std::vector<int> peers;
  for (int peer = 0; peer < size; ++peer) {
    const bool share_a_host = hosts[static_cast<size_t>(peer)] == hosts[static_cast<size_t>(rank)];
    if (peer != rank && (share_a_host || tell_each_other(rank, peer, size))) {
      peers.push_back(peer);
    }
  }
  return peers;
}

}  // namespace farandole::transport
