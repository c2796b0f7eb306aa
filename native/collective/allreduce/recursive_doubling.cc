// Recursive doubling: in round d, peers whose numbers differ in bit d exchange everything and add it up.
//
// With a number of peers that is not a power of two, the first few pairs begin by folding: the even one gives its
// data to the odd one, sits out, and gets the result at the end. Both partners add the lower one's data first, so
// that they hold the same bits even for signed zeros and NaNs.
//
// Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "collective/allreduce/allreduce.h"

namespace farandole::collective {

void buffer_recursive_doubling(Context& context, std::span<const int> peers, reduce::Dtype dtype, reduce::Op op,
                               std::byte* data, size_t count) {
  transport::FrameMultiplexer& frames = context.frames;
  const size_t n = peers.size();
  const auto me = static_cast<size_t>(std::ranges::find(peers, frames.mesh().rank()) - peers.begin());
  const std::span own(data, count * reduce::size_of(dtype));
  const size_t doubled = std::bit_floor(n);
  const size_t folded = n - doubled;  // pairs that fold

  if (me < 2 * folded && me % 2 == 0) {
    frames.send(peers[me + 1], own);
    frames.flush();
    frames.recv(peers[me + 1], own);
    frames.flush();
    return;
  }

  std::vector<std::byte> theirs(own.size());
  const auto add = [&](bool they_come_first) {
    if (they_come_first) {
      reduce::accumulate(dtype, op, theirs.data(), own.data(), count);
      std::ranges::copy(theirs, own.begin());
    } else {
      reduce::accumulate(dtype, op, own.data(), theirs.data(), count);
    }
  };

  if (me < 2 * folded) {
    frames.recv(peers[me - 1], theirs);
    frames.flush();
    add(/*they_come_first=*/true);
  }
  const size_t number = me < 2 * folded ? me / 2 : me - folded;  // among those that take part
  const auto peer_at = [&](size_t k) { return peers[k < folded ? 2 * k + 1 : k + folded]; };
  for (size_t distance = 1; distance < doubled; distance *= 2) {
    const size_t partner = number ^ distance;
    frames.send(peer_at(partner), own);
    frames.recv(peer_at(partner), theirs);
    frames.flush();
    add(partner < number);
  }
  if (me < 2 * folded) {
    frames.send(peers[me - 1], own);
    frames.flush();
  }
}

void allreduce_recursive_doubling(Context& context, const AllreduceJob& job) {
  allreduce_flat(context, job, buffer_recursive_doubling);
}

}  // namespace farandole::collective
