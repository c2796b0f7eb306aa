#include "backend/mpi/exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "collective/scaled_copy.h"

namespace farandole::backend::mpi {
namespace {

using collective::ExchangeJob;
using collective::Slice;

// The memory of one exchange. Many peers get smaller chunks.
constexpr size_t kMostRoomBytes = size_t{32} << 20;
constexpr size_t kLineBytes = transport::kArenaAlignment;

size_t longest_of(std::span<const Slice> slices) {
  size_t longest = 0;
  for (const Slice& slice : slices) {
    longest = std::max(longest, slice.size());
  }
  return longest;
}

}  // namespace

MpiExchange::MpiExchange(Progress& progress, Comm comm, Rooms& rooms, const collective::Knobs& knobs, size_t peers,
                         size_t me, ExchangeJob job, collective::Share& share)
    : progress_(progress), comm_(comm), rooms_(rooms), share_(share), job_(std::move(job)), peers_(peers), me_(me) {
  const size_t element = reduce::size_of(job_.travels);
  const size_t longest = longest_of(job_.slices);
  const size_t rooms_in_all = kDepth * 3 * peers_ + 2;
  const size_t bytes =
      std::min({longest * element, static_cast<size_t>(knobs.link_chunk_bytes), kMostRoomBytes / rooms_in_all});
  room_bytes_ = (bytes / kLineBytes + 1) * kLineBytes;
  chunk_ = room_bytes_ / element;
  count_ = (longest + chunk_ - 1) / chunk_;
  set_up_rooms();
}

void MpiExchange::set_up_rooms() {
  const size_t lists = kDepth * 3 + 1;
  const size_t rooms = kDepth * 3 * peers_ + 2;
  rooms_.reset(lists * Rooms::size_of(peers_ * sizeof(int)) + rooms * room_bytes_);
  for (Round& round : rounds_) {
    round.out = rooms_.take<std::byte>(peers_ * room_bytes_);
    round.in = rooms_.take<std::byte>(peers_ * room_bytes_);
    round.sums_in = rooms_.take<std::byte>(peers_ * room_bytes_);
    round.out_counts = rooms_.take<int>(peers_);
    round.in_counts = rooms_.take<int>(peers_);
    round.sum_counts = rooms_.take<int>(peers_);
  }
  own_addends_ = rooms_.take<std::byte>(room_bytes_);
  wide_ = rooms_.take<std::byte>(room_bytes_);
  displacements_ = rooms_.take<int>(peers_);
  for (size_t peer = 0; peer < peers_; ++peer) {
    displacements_[peer] = static_cast<int>(peer * room_bytes_);
  }
}

MpiExchange::~MpiExchange() {
  const auto under_way = [](const Round& round) {
    return round.addends != Request::kNone || round.sums != Request::kNone;
  };
  if (std::ranges::any_of(rounds_, under_way)) {
    rooms_.leave_to_mpi();  // the world has broken
  }
}

Slice MpiExchange::chunk_of(size_t peer, size_t round) const noexcept {
  const Slice& slice = job_.slices[peer];
  const size_t from = std::min(slice.to, slice.from + round * chunk_);
  return {from, std::min(slice.to, from + chunk_)};
}

bool MpiExchange::can_send() const noexcept {
  // Behind the sums of the round before the last, which have left its memory, and before those of the last one.
  return sent_ < count_ && sent_ < reduced_ + kDepth;
}

bool MpiExchange::can_reduce() const noexcept {
  const bool in_turn = reduced_ < sent_ && sent_ == std::min(reduced_ + kDepth, count_);
  return in_turn && (!has_sums() || reduced_ < settled_ + kDepth) && progress_.test(round(reduced_).addends);
}

bool MpiExchange::can_settle() const noexcept {
  return has_sums() && settled_ < reduced_ && progress_.test(round(settled_).sums);
}

bool MpiExchange::ready() const noexcept { return can_send() || can_settle() || can_reduce(); }

void MpiExchange::advance() {
  for (;;) {
    if (can_send()) {
      send();
    } else if (can_settle()) {
      settle();
    } else if (can_reduce()) {
      reduce();
    } else {
      return;
    }
  }
}

void MpiExchange::put_addends(size_t peer, const Slice& chunk, std::byte* room) {
  if (chunk.size() == 0) {
    return;
  }
  const std::byte* const data = share_.addends(chunk.from, chunk.to, room + peer * room_bytes_);
  if (data != room + peer * room_bytes_) {
    std::memcpy(room + peer * room_bytes_, data, chunk.size() * reduce::size_of(job_.travels));
  }
}

void MpiExchange::send() {
  Round& round = this->round(sent_);
  const size_t element = reduce::size_of(job_.travels);
  const auto own_bytes = static_cast<int>(chunk_of(me_, sent_).size() * element);
  if (job_.cut == Cut::kWhole) {
    put_addends(0, chunk_of(me_, sent_), round.out);
    std::fill_n(round.in_counts, peers_, own_bytes);
    progress_.require(
        progress_.mpi().iallgatherv(round.out, own_bytes, progress_.constants().byte, round.in, round.in_counts,
                                    displacements_, progress_.constants().byte, comm_, &round.addends),
        "MPI_Iallgatherv");
  } else {
    for (size_t peer = 0; peer < peers_; ++peer) {
      const Slice chunk = chunk_of(peer, sent_);
      const bool goes = peer != me_;
      round.out_counts[peer] = goes ? static_cast<int>(chunk.size() * element) : 0;
      round.in_counts[peer] = goes ? own_bytes : 0;
      if (goes) {
        put_addends(peer, chunk, round.out);
      }
    }
    progress_.require(
        progress_.mpi().ialltoallv(round.out, round.out_counts, displacements_, progress_.constants().byte, round.in,
                                   round.in_counts, displacements_, progress_.constants().byte, comm_, &round.addends),
        "MPI_Ialltoallv");
  }
  ++sent_;
}

void MpiExchange::reduce() {
  progress_.check();
  Round& round = this->round(reduced_);
  const Slice own = chunk_of(me_, reduced_);
  std::byte* at = nullptr;
  if (own.size() > 0) {
    std::vector<const void*> inputs(peers_);
    for (size_t peer = 0; peer < peers_; ++peer) {
      inputs[peer] = round.in + peer * room_bytes_;
    }
    if (job_.cut != Cut::kWhole) {
      inputs[me_] = share_.addends(own.from, own.to, own_addends_);
    }
    at = share_.place(own.from, own.to, round.sums_in + me_ * room_bytes_);
    add_up(inputs, at, own.size());
    share_.settle(own.from, own.to, at);
  }
  ++reduced_;
  if (has_sums()) {
    send_sums(round, own, at);
  } else {
    settled_ = reduced_;
  }
}

void MpiExchange::add_up(std::span<const void* const> inputs, std::byte* at, size_t count) {
  void* output = at;
  if (job_.travels == job_.sums) {
    reduce::reduce_to(job_.sums, job_.op, inputs, {&output, 1}, count, job_.postscale);
    return;
  }
  output = wide_;
  reduce::reduce_to(job_.travels, job_.op, inputs, {&output, 1}, count, reduce::Scale{});
  collective::scaled_copy(job_.travels, job_.sums, wide_, at, count, job_.postscale);
}

void MpiExchange::send_sums(Round& round, const Slice& own, const std::byte* sums) {
  const size_t element = reduce::size_of(job_.sums);
  std::byte* const room = round.sums_in + me_ * room_bytes_;
  if (own.size() > 0 && sums != room) {
    std::memcpy(room, sums, own.size() * element);
  }
  for (size_t peer = 0; peer < peers_; ++peer) {
    round.sum_counts[peer] = static_cast<int>(chunk_of(peer, reduced_ - 1).size() * element);
  }
  progress_.require(
      progress_.mpi().iallgatherv(progress_.in_place(), 0, progress_.constants().byte, round.sums_in, round.sum_counts,
                                  displacements_, progress_.constants().byte, comm_, &round.sums),
      "MPI_Iallgatherv");
}

void MpiExchange::settle() {
  progress_.check();
  const Round& round = this->round(settled_);
  for (size_t peer = 0; peer < peers_; ++peer) {
    const Slice chunk = chunk_of(peer, settled_);
    if (peer == me_ || chunk.size() == 0) {
      continue;
    }
    std::byte* const room = round.sums_in + peer * room_bytes_;
    std::byte* const at = share_.place(chunk.from, chunk.to, room);
    if (at != room) {
      std::memcpy(at, room, chunk.size() * reduce::size_of(job_.sums));
    }
    share_.settle(chunk.from, chunk.to, at);
  }
  ++settled_;
}

bool MpiExchange::queued() const noexcept { return reduced_ == count_; }

bool MpiExchange::done() const noexcept { return settled_ == count_; }

std::unique_ptr<collective::Exchange> MpiExchanges::begin(int lane, const collective::Knobs& knobs,
                                                          std::span<const int> peers, ExchangeJob job,
                                                          collective::Share& share) {
  const auto me = static_cast<size_t>(std::ranges::find(peers, progress_.frames().mesh().rank()) - peers.begin());
  return std::make_unique<MpiExchange>(progress_, communicators_.of(peers), rooms_[static_cast<size_t>(lane)], knobs,
                                       peers.size(), me, std::move(job), share);
}

}  // namespace farandole::backend::mpi
