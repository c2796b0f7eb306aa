// Ring allreduce: a reduce-scatter around the ring, then an allgather around the ring.
//
// The buffer is cut into as many slices as there are peers. After the first half peer i holds the whole sum of slice
// i+1. In the second half the finished slices go around once more. Each peer sends 2(n-1)/n of the buffer.
//
// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
#include <algorithm>
#include <vector>

#include "collective/allreduce/allreduce.h"
#include "collective/reducescatter/reducescatter.h"

namespace farandole::collective {

void buffer_ring(Context& context, std::span<const int> peers, reduce::Dtype dtype, reduce::Op op, std::byte* data,
                 size_t count) {
  transport::FrameMultiplexer& frames = context.frames;
  const size_t n = peers.size();
  const auto me = static_cast<size_t>(std::ranges::find(peers, frames.mesh().rank()) - peers.begin());
  const int right = peers[(me + 1) % n];
  const int left = peers[(me + n - 1) % n];
  const size_t element = reduce::size_of(dtype);
  const auto slice = [&](size_t index) { return slice_of(count, n, index % n, 1); };
  const auto bytes = [&](const Slice& s) { return std::span(data + s.from * element, s.size() * element); };

  std::vector<Slice> ends;
  for (size_t i = 0; i < n; ++i) {
    ends.push_back(slice(i + 1));
  }
  buffer_ring_reducescatter(context, peers, dtype, op, data, ends);
  for (size_t round = 0; round + 1 < n; ++round) {
    frames.send(right, bytes(slice(me + n + 1 - round)));
    frames.recv(left, bytes(slice(me + n - round)));
    frames.flush();
  }
}

void allreduce_ring(Context& context, const AllreduceJob& job) { allreduce_flat(context, job, buffer_ring); }

}  // namespace farandole::collective
