// Broadcast over links along a binomial tree, in chunks, so that a relay passes the first one on while the next is
// still arriving.
#include <algorithm>
#include <cstring>
#include <vector>

#include "collective/broadcast/broadcast.h"

namespace farandole::collective {
namespace {

constexpr size_t kChunk = size_t{1} << 20;

}  // namespace

void broadcast_tree(Context& context, const BroadcastJob& job) {
  transport::FrameMultiplexer& frames = context.frames;
  const size_t n = context.group.size();
  const auto root = static_cast<size_t>(job.root_index);
  // Numbers relative to the root. The parent of v lacks v's lowest set bit; its children add one bit below that.
  const size_t v = (static_cast<size_t>(context.group.index) + n - root) % n;
  const auto rank_of = [&](size_t number) { return context.group.members[(number + root) % n]; };
  size_t lowest = 1;
  while (lowest < n && (v & lowest) == 0) {
    lowest *= 2;
  }
  std::vector<int> children;  // the largest subtree first
  for (size_t bit = lowest / 2; bit > 0; bit /= 2) {
    if (v + bit < n) {
      children.push_back(rank_of(v + bit));
    }
  }

  auto* const output = static_cast<std::byte*>(job.output);
  if (v == 0 && job.output != job.input && job.bytes > 0) {
    std::memcpy(job.output, job.input, job.bytes);
  }
  std::vector<uint64_t> tickets;
  if (v != 0) {
    for (size_t from = 0; from < job.bytes; from += kChunk) {
      tickets.push_back(frames.recv(rank_of(v - lowest), std::span(output + from, std::min(kChunk, job.bytes - from))));
    }
  }
  for (size_t from = 0, i = 0; from < job.bytes; from += kChunk, ++i) {
    if (v != 0) {
      frames.wait([&] { return frames.received(rank_of(v - lowest), tickets[i]); });
    }
    for (const int child : children) {
      frames.send(child, std::span(output + from, std::min(kChunk, job.bytes - from)));
    }
  }
  frames.flush();
}

}  // namespace farandole::collective
