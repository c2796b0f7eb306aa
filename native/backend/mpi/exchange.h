// Exchanges carried by MPI: addends travel by MPI_Ialltoallv (or MPI_Iallgather, where everybody needs everything), our
// own arithmetic adds them up in the order of the peers, and the sums travel by MPI_Iallgatherv. So the bits are those
// of an exchange over links; MPI's own reductions do not promise any order of additions.
//
// It is done in rounds, one chunk of every slice at a time, of which two are under way: while one is added up, the next
// one travels. All peers begin the collectives of a communicator in one order, which each of them keeps by waiting for
// nothing but its own last ones: the addends of round 0, then, in each round, the addends of the next one and the sums
// of this one.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "backend/mpi/communicators.h"
#include "backend/mpi/progress.h"
#include "backend/mpi/rooms.h"
#include "collective/exchange.h"

namespace farandole::backend::mpi {

// It has more fields than most classes: what it was given, where its rooms are, and how many rounds have come how far.
// All of that is one exchange under way, which lives for one collective.
class MpiExchange final : public collective::Exchange {
 public:
  // As collective::ExchangeCarrier::begin(); `comm` is that of the peers, of which this one is number `me`.
  MpiExchange(Progress& progress, Comm comm, Rooms& rooms, const collective::Knobs& knobs, size_t peers, size_t me,
              collective::ExchangeJob job, collective::Share& share);
  ~MpiExchange() override;

  bool ready() const noexcept override;
  void advance() override;
  bool queued() const noexcept override;
  bool done() const noexcept override;

 private:
  using Cut = collective::ExchangeJob::Cut;
  static constexpr size_t kDepth = 2;  // rounds that are under way

  // All of it lies in rooms: MPI reads the lists as long as the collective is under way.
  struct Round {
    Request addends = Request::kNone;
    Request sums = Request::kNone;
    std::byte* out = nullptr;      // addends for every peer, a room each
    std::byte* in = nullptr;       // addends of every peer, a room each
    std::byte* sums_in = nullptr;  // sums of every peer, a room each
    int* out_counts = nullptr;
    int* in_counts = nullptr;
    int* sum_counts = nullptr;
  };

  bool has_sums() const noexcept { return job_.cut == Cut::kSlices; }
  collective::Slice chunk_of(size_t peer, size_t round) const noexcept;
  Round& round(size_t number) const noexcept { return rounds_[number % kDepth]; }
  void set_up_rooms();

  bool can_send() const noexcept;
  bool can_reduce() const noexcept;
  bool can_settle() const noexcept;
  void send();
  void put_addends(size_t peer, const collective::Slice& chunk, std::byte* room);
  void reduce();
  void add_up(std::span<const void* const> inputs, std::byte* at, size_t count);
  void send_sums(Round& round, const collective::Slice& own, const std::byte* sums);
  void settle();

  Progress& progress_;
  const Comm comm_;
  Rooms& rooms_;
  collective::Share& share_;
  const collective::ExchangeJob job_;
  const size_t peers_;
  const size_t me_;
  size_t chunk_ = 0;  // elements
  size_t room_bytes_ = 0;
  size_t count_ = 0;                          // rounds in all
  int* displacements_ = nullptr;              // of rooms
  std::byte* own_addends_ = nullptr;          // a room
  std::byte* wide_ = nullptr;                 // a room for sums that are not rounded yet
  mutable std::array<Round, kDepth> rounds_;  // a test moves MPI on
  size_t sent_ = 0;
  size_t reduced_ = 0;
  size_t settled_ = 0;
};

class MpiExchanges final : public collective::ExchangeCarrier {
 public:
  MpiExchanges(Progress& progress, Communicators& communicators) : progress_(progress), communicators_(communicators) {}
  std::unique_ptr<collective::Exchange> begin(int lane, const collective::Knobs& knobs, std::span<const int> peers,
                                              collective::ExchangeJob job, collective::Share& share) override;

 private:
  Progress& progress_;
  Communicators& communicators_;
  std::array<Rooms, 2> rooms_;  // of each lane
};

}  // namespace farandole::backend::mpi
