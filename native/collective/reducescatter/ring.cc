// Ring reduce-scatter: the slice that ends at peer i starts at peer i+1 and travels to the right, and each peer on its
// way adds its own addend. So the order of additions of slice i is i+1, i+2 ... i.
//
// The input is cut into rounds that take a piece of every member's part, so that the buffer stays small.
#include <algorithm>
#include <vector>

#include "collective/reducescatter/parts.h"
#include "collective/reducescatter/reducescatter.h"
#include "collective/scaled_copy.h"

namespace farandole::collective {

void buffer_ring_reducescatter(Context& context, std::span<const int> peers, reduce::Dtype dtype, reduce::Op op,
                               std::byte* data, std::span<const Slice> ends) {
  transport::FrameMultiplexer& frames = context.frames;
  const size_t n = peers.size();
  const auto me = static_cast<size_t>(std::ranges::find(peers, frames.mesh().rank()) - peers.begin());
  const int right = peers[(me + 1) % n];
  const int left = peers[(me + n - 1) % n];
  const size_t element = reduce::size_of(dtype);
  const auto bytes = [&](const Slice& s) { return std::span(data + s.from * element, s.size() * element); };

  size_t longest = 0;
  for (const Slice& slice : ends) {
    longest = std::max(longest, slice.size());
  }
  std::vector<std::byte> arriving(longest * element);
  for (size_t round = 0; round + 1 < n; ++round) {
    const Slice& into = ends[(me + 2 * n - round - 2) % n];
    frames.send(right, bytes(ends[(me + 2 * n - round - 1) % n]));
    frames.recv(left, std::span(arriving).first(into.size() * element));
    frames.flush();
    reduce::accumulate(dtype, op, data + into.from * element, arriving.data(), into.size());
  }
}

void reducescatter_ring(Context& context, const ReducescatterJob& job) {
  const Parts parts(job);
  const reduce::Dtype held = reduce::accumulator_of(job.dtype);
  const size_t element = reduce::size_of(held);
  const size_t n = context.group.size();
  const auto me = static_cast<size_t>(context.group.index);
  const size_t cell = std::max(size_t{1}, context.staging.piece_bytes() / element / n);
  std::vector<std::byte> buffer(std::min(cell, parts.longest()) * n * element);
  for (size_t from = 0; from < parts.longest(); from += cell) {
    std::vector<Slice> slices;
    size_t at = 0;
    for (size_t k = 0; k < n; ++k) {
      slices.push_back({at, at + parts.copy_in(k, from, cell, held, buffer.data() + at * element)});
      at = slices.back().to;
    }
    buffer_ring_reducescatter(context, context.group.members, held, job.op, buffer.data(), slices);
    if (slices[me].size() > 0) {
      scaled_copy(held, job.dtype, buffer.data() + slices[me].from * element,
                  static_cast<std::byte*>(job.output) + from * reduce::size_of(job.dtype), slices[me].size(),
                  job.postscale);
    }
  }
}

}  // namespace farandole::collective
