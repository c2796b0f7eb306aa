// Reducescatter over links by half an exchange of slices: every member sends part k straight to member k, which adds up
// what comes and keeps it; see collective/exchange.h.
#include "collective/exchange.h"

#include "collective/reducescatter/reducescatter.h"
#include "collective/scaled_copy.h"

namespace farandole::collective {
namespace {

class PartsShare final : public Share {
 public:
  // `own` is the own part, in elements of the input.
  PartsShare(const ReducescatterJob& job, const Slice& own)
      : job_(job), own_(own), element_(reduce::size_of(job.dtype)) {}

  const std::byte* addends(size_t from, size_t to, std::byte* room) override {
    const auto* const input = static_cast<const std::byte*>(job_.input) + from * element_;
    if (job_.prescale.is_one()) {
      return input;
    }
    scaled_copy(job_.dtype, job_.dtype, input, room, to - from, job_.prescale);
    return room;
  }

  std::byte* place(size_t from, size_t, std::byte*) override {
    return static_cast<std::byte*>(job_.output) + (from - own_.from) * element_;
  }

  void settle(size_t, size_t, const std::byte*) override {}

 private:
  const ReducescatterJob& job_;
  const Slice own_;
  const size_t element_;
};

}  // namespace

void reducescatter_exchange(Context& context, const ReducescatterJob& job) {
  ExchangeJob exchange;
  exchange.cut = ExchangeJob::Cut::kScatter;
  exchange.op = job.op;
  exchange.travels = job.dtype;
  exchange.sums = job.dtype;
  exchange.postscale = job.postscale;
  size_t at = 0;
  for (const size_t count : job.counts) {
    exchange.slices.push_back({at, at + count});
    at += count;
  }
  PartsShare share(job, exchange.slices[static_cast<size_t>(context.group.index)]);
  const auto running = context.exchanges.begin(0, context.knobs, context.group.members, std::move(exchange), share);
  finish(*running, context.frames);
}

}  // namespace farandole::collective
