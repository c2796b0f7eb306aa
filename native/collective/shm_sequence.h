// Synchronization of the workers of a host through shared memory.
//
// Every worker has one counter in its arena, its *sequence*, which only grows: the high half is the number of the
// agreed decision that it works on, the low half counts within that decision. All workers take part in decisions in one
// common order, and the members of a group advance alike within a decision. So "the sequence of that worker is at least
// s" means that it has done everything up to s, whatever else it did in other groups. For the same reason, work that
// only some members of a group do (a transfer between two of them) must not advance the sequence: it goes over links.
//
// Data is read where its owner announces it. An announcement is written into one of kWindows *windows*, numbered places
// in the header of the owner's arena. Windows are used in turn, so that the next piece can be announced while the last
// one is still being read: algorithms that need two take windows 0 and 1, and begin with another one in each decision;
// algorithms that need three take the others.
//
// A window that other workers still read is on loan. Before it announces something else, those readers must have passed
// the sequence number at which they were done with it. That wait is put off until the window is needed again. For small
// collectives one after another, that is two decisions later. A member that has announced something for the decision in
// between is done with the one before. So where all wait for all, the readers have long passed that number, and a small
// collective synchronizes once instead of twice.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/frame_multiplexer.h"

namespace farandole::collective {

// The windows of pipelines in which one piece is announced, one reduced and one read at the same time.
inline constexpr int kFirstOfThree = 2;
constexpr int one_of_three(size_t turn) { return kFirstOfThree + static_cast<int>(turn % 3); }

class ShmSequence {
 public:
  explicit ShmSequence(transport::FrameMultiplexer& frames) : frames_(frames) {}

  // Begins the work of this decision. Decisions count from 1.
  void begin(uint32_t decision) noexcept { current_ = static_cast<uint64_t>(decision) << 32; }
  // The window with which an algorithm that needs two begins in this decision, the same on all members.
  int first_of_two() const noexcept { return static_cast<int>(current_ >> 32 & 1); }

  // Advances the own sequence by one and wakes those of `team` that sleep. Returns the new number.
  uint64_t publish(std::span<const int> team);
  // Announces where in the own arena the data lies for the next number to be published, and whether all further data
  // lies in place behind it. Waits until nobody reads what the window announced before.
  void place(int window, size_t offset, bool in_place = false);
  // place(), then publish().
  uint64_t publish_at(std::span<const int> team, int window, size_t offset, bool in_place = false);
  // From now on `team` may read what the window announces, until the sequences of all of it have reached `until`.
  void lend(int window, std::span<const int> team, uint64_t until);
  // Waits until nobody reads what the window announces.
  void settle(int window);

  // Waits until the sequences of all of `team` have reached `number`.
  void wait_for(std::span<const int> team, uint64_t number);
  // Whether the sequences of all of `team` have reached `number`. Does not wait.
  bool reached(std::span<const int> team, uint64_t number) const noexcept;
  // Returns the place at which `rank` put the data, for the number that was waited for last.
  std::byte* data_of(int rank, int window) const;
  bool is_in_place(int rank, int window) const;

 private:
  struct Loan {
    std::vector<int> team;
    uint64_t until = 0;  // 0: no worker reads the window
  };

  transport::FrameMultiplexer& frames_;
  uint64_t current_ = 0;
  std::array<Loan, transport::kWindows> loans_;
};

}  // namespace farandole::collective
