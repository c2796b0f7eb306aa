#include "collective/link_exchange.h"

#include <algorithm>

#include "collective/scaled_copy.h"

namespace farandole::collective {
namespace {

// The smallest number of chunks that a slice is cut into, so that arithmetic and transfer overlap...
constexpr size_t kChunksOfASlice = 4;
// ...but not into chunks so small that the cost of a message exceeds the gain.
constexpr size_t kLeastChunkBytes = size_t{32} << 10;
// The private memory of one exchange. Many peers get smaller chunks.
constexpr size_t kMostRoomBytes = size_t{16} << 20;
constexpr size_t kLineBytes = transport::kArenaAlignment;

// The number of rows of chunk buffers that every link has.
enum Row : size_t { kAddendsOut, kAddendsIn, kSumsIn, kRows };

size_t longest_of(std::span<const Slice> slices) {
  size_t longest = 0;
  for (const Slice& slice : slices) {
    longest = std::max(longest, slice.size());
  }
  return longest;
}

}  // namespace

LinkExchange::LinkExchange(transport::FrameMultiplexer& frames, Staging& staging, int lane, const Knobs& knobs,
                           std::span<const int> peers, ExchangeJob job, Share& share)
    : frames_(frames),
      share_(share),
      job_(std::move(job)),
      me_(static_cast<size_t>(std::ranges::find(peers, frames.mesh().rank()) - peers.begin())) {
  const size_t n = peers.size();
  const size_t rooms = (n - 1) * kRows * kDepth + kDepth + 2;
  const size_t element = reduce::size_of(job_.travels);
  size_t bytes = std::max(longest_of(job_.slices) * element / kChunksOfASlice, kLeastChunkBytes);
  bytes = std::min({bytes, static_cast<size_t>(knobs.link_chunk_bytes), kMostRoomBytes / rooms});
  room_bytes_ = std::max(bytes / kLineBytes, size_t{1}) * kLineBytes;
  chunk_ = room_bytes_ / element;
  rooms_ = staging.private_memory(lane, rooms * room_bytes_);

  const auto sums_of = [&](size_t k) {
    return job_.cut == ExchangeJob::Cut::kSlices ? chunks_of(job_.slices[k]) : size_t{0};
  };
  // Beginning with the next peer, so that not all begin with the same one.
  for (size_t distance = 1; distance < n; ++distance) {
    const size_t peer = (me_ + distance) % n;
    lines_.push_back({.rank = peers[peer],
                      .peer = peer,
                      .outward = {.addends = chunks_of(job_.slices[peer]), .sums = sums_of(me_)},
                      .inward = {.addends = chunks_of(own()), .sums = sums_of(peer)}});
  }
}

LinkExchange::Item LinkExchange::Order::next() const noexcept {
  const bool sum_is_due = next_sums < sums && (next_addends == addends || next_sums + kDepth <= next_addends);
  return sum_is_due ? Item{Kind::kSums, next_sums} : Item{Kind::kAddends, next_addends};
}

void LinkExchange::Order::advance() noexcept { ++(next().kind == Kind::kSums ? next_sums : next_addends); }

Slice LinkExchange::chunk_at(const Slice& slice, size_t chunk) const noexcept {
  const size_t from = slice.from + chunk * chunk_;
  return {from, std::min(slice.to, from + chunk_)};
}

size_t LinkExchange::element_of(Kind kind) const noexcept {
  return reduce::size_of(kind == Kind::kAddends ? job_.travels : job_.sums);
}

std::byte* LinkExchange::room_of(const Line& line, size_t row, size_t chunk) const noexcept {
  const auto number = static_cast<size_t>(&line - lines_.data());
  return room((number * kRows + row) * kDepth + chunk % kDepth);
}

bool LinkExchange::can_send(const Line& line) const noexcept {
  if (line.outward.over()) {
    return false;
  }
  const Item item = line.outward.next();
  if (item.kind == Kind::kSums) {
    return item.chunk < reduced_;
  }
  // Prepared no earlier than needed: it is still in the cache when it is sent.
  return item.chunk < kDepth || frames_.sent(line.rank, line.addends_out[item.chunk % kDepth]);
}

void LinkExchange::send(Line& line) {
  const Item item = line.outward.next();
  line.outward.advance();
  const Slice chunk = chunk_at(item.kind == Kind::kSums ? own() : job_.slices[line.peer], item.chunk);
  const size_t at = item.chunk % kDepth;
  const std::byte* const data = item.kind == Kind::kSums
                                    ? sums_[at]
                                    : share_.addends(chunk.from, chunk.to, room_of(line, kAddendsOut, item.chunk));
  auto& tickets = item.kind == Kind::kSums ? line.sums_out : line.addends_out;
  tickets[at] = frames_.send(line.rank, std::span(data, chunk.size() * element_of(item.kind)));
}

bool LinkExchange::can_receive(const Line& line) const noexcept {
  if (line.inward.over()) {
    return false;
  }
  const Item item = line.inward.next();
  return item.chunk < (item.kind == Kind::kSums ? line.settled : reduced_) + kDepth;
}

void LinkExchange::receive(Line& line) {
  const Item item = line.inward.next();
  line.inward.advance();
  const size_t at = item.chunk % kDepth;
  if (item.kind == Kind::kAddends) {
    const size_t bytes = chunk_at(own(), item.chunk).size() * element_of(item.kind);
    line.addends_in[at] = frames_.recv(line.rank, std::span(room_of(line, kAddendsIn, item.chunk), bytes));
    return;
  }
  const Slice chunk = chunk_at(job_.slices[line.peer], item.chunk);
  line.places[at] = share_.place(chunk.from, chunk.to, room_of(line, kSumsIn, item.chunk));
  line.sums_in[at] = frames_.recv(line.rank, std::span(line.places[at], chunk.size() * element_of(item.kind)));
}

bool LinkExchange::can_settle(const Line& line) const noexcept {
  return line.settled < line.inward.next_sums && frames_.received(line.rank, line.sums_in[line.settled % kDepth]);
}

void LinkExchange::settle(Line& line) {
  const Slice chunk = chunk_at(job_.slices[line.peer], line.settled);
  share_.settle(chunk.from, chunk.to, line.places[line.settled % kDepth]);
  ++line.settled;
}

bool LinkExchange::can_reduce() const noexcept {
  if (reduced_ == chunks_of(own())) {
    return false;
  }
  const size_t at = reduced_ % kDepth;
  return std::ranges::all_of(lines_, [&](const Line& line) {
    const bool came = line.inward.next_addends > reduced_ && frames_.received(line.rank, line.addends_in[at]);
    // The sums go to where this peer's addends lie, which must have been sent if others need them too...
    const bool free = job_.cut != ExchangeJob::Cut::kWhole || line.outward.next_addends > reduced_ + kDepth ||
                      (line.outward.next_addends > reduced_ && frames_.sent(line.rank, line.addends_out[at]));
    // ...or to the buffer of sums that are still being sent.
    const bool room = reduced_ < kDepth || line.outward.sums == 0 ||
                      (line.outward.next_sums > reduced_ - kDepth && frames_.sent(line.rank, line.sums_out[at]));
    return came && free && room;
  });
}

void LinkExchange::reduce() {
  const Slice chunk = chunk_at(own(), reduced_);
  const size_t own_rooms = lines_.size() * kRows * kDepth;
  std::vector<const void*> inputs(lines_.size() + 1);
  for (const Line& line : lines_) {
    inputs[line.peer] = room_of(line, kAddendsIn, reduced_);
  }
  inputs[me_] = share_.addends(chunk.from, chunk.to, room(own_rooms));
  std::byte* const at = share_.place(chunk.from, chunk.to, room(own_rooms + 2 + reduced_ % kDepth));
  add_up(inputs, at, chunk.size());
  share_.settle(chunk.from, chunk.to, at);
  sums_[reduced_ % kDepth] = at;
  ++reduced_;
}

void LinkExchange::add_up(std::span<const void* const> inputs, std::byte* at, size_t count) {
  if (job_.travels == job_.sums) {
    void* const output = at;
    reduce::reduce_to(job_.sums, job_.op, inputs, {&output, 1}, count, job_.postscale);
    return;
  }
  std::byte* const wide = room(lines_.size() * kRows * kDepth + 1);
  void* const output = wide;
  reduce::reduce_to(job_.travels, job_.op, inputs, {&output, 1}, count, reduce::Scale{});
  scaled_copy(job_.travels, job_.sums, wide, at, count, job_.postscale);
}

bool LinkExchange::ready() const noexcept {
  return can_reduce() || std::ranges::any_of(lines_, [this](const Line& line) {
           return can_settle(line) || can_receive(line) || can_send(line);
         });
}

void LinkExchange::advance() {
  while (ready()) {
    for (Line& line : lines_) {
      while (can_settle(line)) {
        settle(line);
      }
      while (can_receive(line)) {
        receive(line);
      }
    }
    if (can_reduce()) {
      reduce();
    }
    for (Line& line : lines_) {
      while (can_send(line)) {
        send(line);
      }
    }
  }
}

bool LinkExchange::queued() const noexcept {
  return std::ranges::all_of(lines_, [](const Line& line) { return line.outward.over() && line.inward.over(); });
}

bool LinkExchange::done() const noexcept {
  const auto complete = [this](const Line& line) {
    const bool sums_sent =
        line.outward.sums == 0 || frames_.sent(line.rank, line.sums_out[(line.outward.sums - 1) % kDepth]);
    const bool addends_sent =
        line.outward.addends == 0 || frames_.sent(line.rank, line.addends_out[(line.outward.addends - 1) % kDepth]);
    return line.settled == line.inward.sums && sums_sent && addends_sent;
  };
  return reduced_ == chunks_of(own()) && queued() && std::ranges::all_of(lines_, complete);
}

std::unique_ptr<Exchange> LinkExchanges::begin(int lane, const Knobs& knobs, std::span<const int> peers,
                                               ExchangeJob job, Share& share) {
  return std::make_unique<LinkExchange>(frames_, staging_, lane, knobs, peers, std::move(job), share);
}

}  // namespace farandole::collective
