// An exchange over links, pipelined in chunks: a chunk is added as soon as it has come from all peers, while the next
// ones are on their way, and its sum is sent at once.
//
// On every link the chunks go in one fixed order, which both ends know: addends, and kDepth behind them sums. That
// cannot deadlock: the sum of chunk c needs the addends of chunk c, and only sums before it go ahead of those.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collective/exchange.h"
#include "collective/staging.h"

namespace farandole::collective {

class LinkExchange final : public Exchange {
 public:
  // As ExchangeCarrier::begin().
  LinkExchange(transport::FrameMultiplexer& frames, Staging& staging, int lane, const Knobs& knobs,
               std::span<const int> peers, ExchangeJob job, Share& share);

  bool ready() const noexcept override;
  void advance() override;
  bool queued() const noexcept override;
  bool done() const noexcept override;

 private:
  // The number of chunks of one kind that may be under way on a link.
  static constexpr size_t kDepth = 4;

  enum class Kind : uint8_t { kAddends, kSums };
  struct Item {
    Kind kind;
    size_t chunk;
  };
  // The position in the fixed order of one direction of a link.
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
    std::array<uint64_t, kDepth> addends_out{};  // tickets of the last messages of each kind
    std::array<uint64_t, kDepth> addends_in{};
    std::array<uint64_t, kDepth> sums_out{};
    std::array<uint64_t, kDepth> sums_in{};
    std::array<std::byte*, kDepth> places{};  // of sums that are arriving
    size_t settled = 0;                       // how many sums have arrived
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

class LinkExchanges final : public ExchangeCarrier {
 public:
  // Both outlive it.
  LinkExchanges(transport::FrameMultiplexer& frames, Staging& staging) : frames_(frames), staging_(staging) {}
  std::unique_ptr<Exchange> begin(int lane, const Knobs& knobs, std::span<const int> peers, ExchangeJob job,
                                  Share& share) override;

 private:
  transport::FrameMultiplexer& frames_;
  Staging& staging_;
};

}  // namespace farandole::collective
