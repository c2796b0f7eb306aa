#include "collective/exchange.h"

namespace farandole::collective {
namespace {

// The number of bytes that are added in the time in which a link carries one byte.
constexpr size_t kAdditionsPerByte = 10;
constexpr size_t kLineBytes = transport::kArenaAlignment;

}  // namespace

ExchangeJob cut_allreduce(size_t count, size_t peers, reduce::Dtype travels, reduce::Dtype sums, const Knobs& knobs) {
  ExchangeJob job;
  job.travels = travels;
  job.sums = sums;
  // One way of (n-1) times the data against two of (n-1)/n of it each: that is (n-1)(n-2)/n more bytes on the link, and
  // (n-1)/n more bytes to add, in return for one message's time.
  const size_t bytes = count * reduce::size_of(travels);
  const size_t more = bytes * (peers - 1) * (kAdditionsPerByte * (peers - 2) + 1) / (kAdditionsPerByte * peers);
  job.cut = more <= knobs.ring_bytes ? ExchangeJob::Cut::kWhole : ExchangeJob::Cut::kSlices;
  for (size_t k = 0; k < peers; ++k) {
    job.slices.push_back(job.cut == ExchangeJob::Cut::kWhole
                             ? Slice{0, count}
                             : slice_of(count, peers, k, kLineBytes / reduce::size_of(sums)));
  }
  return job;
}

void finish(Exchange& exchange, transport::FrameMultiplexer& frames) {
  for (exchange.advance(); !exchange.done(); exchange.advance()) {
    frames.wait([&] { return exchange.ready() || exchange.done(); });
  }
}

}  // namespace farandole::collective
