// An exchange of slices between peers over links: every peer sends slice k straight to peer k, which adds up what came
// and sends the sum to all. It is pipelined in chunks: a chunk is added as soon as it has come from all peers, while
// the next ones are on their way, and its sum is sent at once.
//
// Whatever the number of peers and wherever an element lies, its addends are added in the order of the peers. So the
// result does not depend on how the elements are cut, and the cut may follow speed alone:
//
//   kSlices  each peer adds up its slice and sends the sum to all: 2 (n-1)/n of the data out, and as much in
//   kWhole   each peer adds up everything for itself: one way instead of two, for n-1 times the data. For few bytes
//   kScatter each peer adds up its slice and keeps it: a reduce-scatter
//
// On every link the chunks go in one fixed order, which both ends know: addends, and kDepth behind them sums. That
// cannot deadlock: the sum of chunk c needs the addends of chunk c, and only sums before it go ahead of those.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collective/bucket.h"
#include "collective/knobs.h"
#include "collective/staging.h"

namespace farandole::collective {

// What one peer brings to an exchange and takes from it. Positions are elements of the whole.
class Share {
 public:
  virtual ~Share() = default;

  // Addends [from, to), of the type in which they travel: where they lie already, or in `room`. They stay there until
  // they are sent.
  virtual const std::byte* addends(size_t from, size_t to, std::byte* room) = 0;
  // Where the sums [from, to) are to be written: in their final place, which may be that of the addends, or in `room`.
  virtual std::byte* place(size_t from, size_t to, std::byte* room) = 0;
  // They have been written where place() said.
  virtual void settle(size_t from, size_t to, const std::byte* sums) = 0;
};

struct ExchangeJob {
  enum class Cut : uint8_t { kSlices, kWhole, kScatter };
  Cut cut = Cut::kSlices;
  reduce::Op op = reduce::Op::kSum;
  reduce::Dtype travels = reduce::Dtype::kF32;  // type of addends: that of sums, or its accumulator
  reduce::Dtype sums = reduce::Dtype::kF32;
  reduce::Scale postscale;    // of the sums
  std::vector<Slice> slices;  // of each peer; for kWhole all are the whole
};

// Slices of nearly equal size, or the whole for everyone where that is faster.
ExchangeJob cut_allreduce(size_t count, size_t peers, reduce::Dtype travels, reduce::Dtype sums, const Knobs& knobs);

class Exchange {
 public:
  // `peers` are ranks, this one included, the same list on all of them. All references outlive the exchange. `lane` is
  // which part of the private memory it uses: of two exchanges that overlap, one is 0 and the other 1.
  Exchange(transport::FrameMultiplexer& frames, Staging& staging, int lane, const Knobs& knobs,
           std::span<const int> peers, ExchangeJob job, Share& share);

  // Whether advance() would find something to do. Looks only.
  bool ready() const noexcept;
  // Does whatever can be done now. Never waits.
  void advance();
  // Everything has been handed to the links: another exchange may use them.
  bool queued() const noexcept;
  bool done() const noexcept;
  // Waits until it is done.
  void finish();

 private:
  // How many chunks of one kind may be under way on a link.
  static constexpr size_t kDepth = 4;

  enum class Kind : uint8_t { kAddends, kSums };
  struct Item {
    Kind kind;
    size_t chunk;
  };
  // Walks the fixed order of one direction of a link.
  struct Order {
    size_t addends = 0;  // chunks of each kind in all
    size_t sums = 0;
    size_t next_addends = 0;
    size_t next_sums = 0;

    bool over() const noexcept { return next_addends == addends && next_sums == sums; }
    Item next() const noexcept;
    void advance() noexcept;
  };
  // One link.
  struct Line {
    int rank;
    size_t peer;  // number in `peers`
    Order outward;
    Order inward;
    std::array<uint64_t, kDepth> addends_out{};  // tickets of the last ones of each kind
    std::array<uint64_t, kDepth> addends_in{};
    std::array<uint64_t, kDepth> sums_out{};
    std::array<uint64_t, kDepth> sums_in{};
    std::array<std::byte*, kDepth> places{};  // of sums that are arriving
    size_t settled = 0;                       // sums that have come
  };

  size_t chunks_of(const Slice& slice) const noexcept { return (slice.size() + chunk_ - 1) / chunk_; }
  Slice chunk_at(const Slice& slice, size_t chunk) const noexcept;
  const Slice& own() const noexcept { return job_.slices[me_]; }
  size_t element_of(Kind kind) const noexcept;
  std::byte* room(size_t number) const noexcept { return rooms_ + number * room_bytes_; }
  std::byte* room_of(const Line& line, size_t row, size_t chunk) const noexcept;

  bool can_send(const Line& line) const noexcept;
  bool can_receive(const Line& line) const noexcept;
  bool can_settle(const Line& line) const noexcept;
  bool can_reduce() const noexcept;
  void send(Line& line);
  void receive(Line& line);
  void settle(Line& line);
  void reduce();
  void add_up(std::span<const void* const> inputs, std::byte* at, size_t count);

  transport::FrameMultiplexer& frames_;
  Share& share_;
  const ExchangeJob job_;
  const size_t me_;
  size_t chunk_;  // elements
  size_t room_bytes_;
  std::byte* rooms_;
  std::vector<Line> lines_;
  size_t reduced_ = 0;  // chunks of the own slice
  std::array<std::byte*, kDepth> sums_{};
};

}  // namespace farandole::collective
