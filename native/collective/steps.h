// How the workers of a host keep step in shared memory.
//
// Every worker has one counter in its arena, its step, which only grows: the high half is the number of the
// agreed decision it works on, the low half counts within it. All workers take part in decisions in one common
// order, and the members of a group take the same steps, so "my peer's step is at least s" means that the
// peer has done everything up to s, whatever else it did in other groups. That is why what only some members of a group
// do (a transfer between two of them) must take no steps, and go over links.
//
// Data lies where the publisher says: slots, used in turn, so that the next piece can be announced while the last
// one is still being read. Slots 0 and 1 are for algorithms that take two in turn, the others for those that take
// three.
//
// A slot that others still read is on loan. Before it says something else, those readers must have passed the step
// at which they were done with it. That wait is put off until the slot is needed again, so that small collectives
// need one meeting instead of two.
//
// Staging is memory of the own arena, in as many pieces as there are slots, for data that lies outside of any arena:
// piece i goes with slot i.
// Beside it there is private memory, for what is on its way between a tensor and a link.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transport/pump.h"

namespace farandole::collective {

// The slots that are taken in turn by pipelines in which a piece is announced, reduced and read at the same time.
inline constexpr int kFirstOfThree = 2;
constexpr int one_of_three(size_t turn) { return kFirstOfThree + static_cast<int>(turn % 3); }

class Steps {
 public:
  explicit Steps(transport::Pump& pump) : pump_(pump) {}

  // The following steps belong to this decision. Decisions count from 1.
  void begin(uint32_t decision) noexcept { step_ = static_cast<uint64_t>(decision) << 32; }

  // Takes the next step and tells the others of `team`, who may be sleeping. Returns the step.
  uint64_t publish(std::span<const int> team);
  // Says where the data of a step to come lies in the own arena, and whether all the data of the following steps lies
  // in place behind it. Waits until nobody reads what the slot said before.
  void place(int slot, size_t offset, bool in_place = false);
  // Takes the next step, saying first where its data lies.
  uint64_t publish_at(std::span<const int> team, int slot, size_t offset, bool in_place = false);
  // From now on `team` may read what the slot says, until all of it have taken `step`.
  void lend(int slot, std::span<const int> team, uint64_t step);
  // Waits until nobody reads what the slot says.
  void settle(int slot);

  // Waits until all of `team` have taken this step.
  void wait_for(std::span<const int> team, uint64_t step);
  // Whether all of `team` have taken this step.
  bool reached(std::span<const int> team, uint64_t step) const noexcept;
  // Where `rank` put the data, for the step that was waited for last.
  std::byte* data_of(int rank, int slot) const;
  bool is_in_place(int rank, int slot) const;

  transport::Pump& pump() noexcept { return pump_; }

 private:
  struct Loan {
    std::vector<int> team;
    uint64_t until_step = 0;  // 0: none
  };

  transport::Pump& pump_;
  uint64_t step_ = 0;
  std::array<Loan, transport::kSlots> loans_;
};

class Staging {
 public:
  // `memory` lies in the own arena and is kSlots * piece_bytes long.
  Staging(Steps& steps, std::byte* memory, size_t piece_bytes)
      : steps_(steps), memory_(memory), piece_bytes_(piece_bytes) {}

  size_t piece_bytes() const noexcept { return piece_bytes_; }
  // Memory that nobody reads any more.
  std::byte* acquire(int slot) {
    steps_.settle(slot);
    return memory_ + static_cast<size_t>(slot) * piece_bytes_;
  }
  // Memory of this worker alone, at least so long, aligned as an arena's; what it held is undefined. There are two
  // lanes of it; each call ends what the last one on this lane gave.
  std::byte* private_memory(int lane, size_t bytes);

 private:
  struct Private {
    std::unique_ptr<std::byte[]> memory;
    size_t bytes = 0;
  };

  Steps& steps_;
  std::byte* const memory_;
  const size_t piece_bytes_;
  std::array<Private, 2> private_;
};

}  // namespace farandole::collective
