// An exchange of slices between peers: every peer sends slice k straight to peer k, which adds up what came and sends
// the sum to all. What carries them differs (links: link_exchange.h); what is added, and in which order, does not.
//
// Whatever the number of peers and wherever an element lies, its addends are added in the order of the peers. So the
// result does not depend on how the elements are cut, and the cut may follow speed alone:
//
//   kSlices  each peer adds up its slice and sends the sum to all: it sends and receives 2 (n-1)/n of the data
//   kWhole   each peer adds up everything for itself: one message in sequence instead of two, but n-1 times the data.
//            For few bytes
//   kScatter each peer adds up its slice and keeps it: a reduce-scatter
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collective/bucket.h"
#include "collective/knobs.h"
#include "transport/frame_multiplexer.h"

namespace farandole::collective {

// The parts that one peer brings to an exchange and takes from it. Positions are elements of the whole.
class Share {
 public:
  virtual ~Share() = default;

  // Addends [from, to), of the type in which they travel: where they lie already, or in `room`. They stay there until
  // they are sent.
  virtual const std::byte* addends(size_t from, size_t to, std::byte* room) = 0;
  // Where the sums [from, to) are to be written: in their final place, which may be that of the addends, or in `room`.
  virtual std::byte* place(size_t from, size_t to, std::byte* room) = 0;
  // The sums [from, to) have been written to the address that place() returned.
  virtual void settle(size_t from, size_t to, const std::byte* sums) = 0;
};

struct ExchangeJob {
  enum class Cut : uint8_t { kSlices, kWhole, kScatter };
  Cut cut = Cut::kSlices;
  reduce::Op op = reduce::Op::kSum;
  reduce::Dtype travels = reduce::Dtype::kF32;  // type of addends: that of sums, or its accumulator
  reduce::Dtype sums = reduce::Dtype::kF32;
  reduce::Scale postscale;    // of the sums
  std::vector<Slice> slices;  // one for each peer; with kWhole each is the whole
};

// Slices of nearly equal size, or the whole for everyone where that is faster.
ExchangeJob cut_allreduce(size_t count, size_t peers, reduce::Dtype travels, reduce::Dtype sums, const Knobs& knobs);

// One exchange that is under way.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // Whether advance() would find something to do. Changes nothing.
  virtual bool ready() const noexcept = 0;
  // Does all that can be done without waiting.
  virtual void advance() = 0;
  // Whether everything has been handed to the carrier, so that another exchange may begin.
  virtual bool queued() const noexcept = 0;
  virtual bool done() const noexcept = 0;
};

// The carrier of exchanges between the workers of one world.
class ExchangeCarrier {
 public:
  virtual ~ExchangeCarrier() = default;

  // `peers` are ranks, this one included, the same list on all of them; all references outlive the exchange. `lane` is
  // which part of the private memory it uses: of two exchanges that overlap, one is 0 and the other 1.
  virtual std::unique_ptr<Exchange> begin(int lane, const Knobs& knobs, std::span<const int> peers, ExchangeJob job,
                                          Share& share) = 0;
};

// Blocks until the exchange is done.
void finish(Exchange& exchange, transport::FrameMultiplexer& frames);

}  // namespace farandole::collective
