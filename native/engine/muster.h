// Agreement among the workers of one host on one known request, without messages: all of them write down that they have
// it, in one word of shared memory, and who sees that all have runs it.
//
// This is how most requests of most scripts come: all workers ask for the same thing and wait. Messages to rank 0 and
// back would take longer than the collective. Whatever else happens goes the long way, by messages, and closes the
// word, so that those who have written into it do the same.
//
// Decisions are numbered, and the word says for which number it stands. A number is given away once: either all workers
// have mustered for it before anyone closed the word, or rank 0 closes the word and then sends a decision of that
// number. There are two words, for odd and even numbers, so that who looks late still finds what became of its number,
// or a later one: then its number is rank 0's decision, or the one before rank 0's decision, and that says which it is.
#pragma once

#include <cstdint>

#include "transport/arena.h"

namespace farandole::engine {

class Muster {
 public:
  // `header` is that of rank 0's arena; null: there is no mustering, and every word is closed.
  Muster(transport::ArenaHeader* header, int world_size) noexcept;

  enum class State : uint8_t {
    kOpen,    // some are missing
    kAll,     // agreed: it is the decision of this number
    kClosed,  // the long way
    kPassed   // a later number is at its place
  };
  // This worker has the request that `bit` stands for, and has obeyed all decisions before this number. Not kPassed.
  State announce(uint32_t number, uint32_t bit) noexcept;
  // Whether an announcement may succeed.
  bool is_open(uint32_t number) const noexcept;
  // What has become of a number that this worker has announced something for.
  State look(uint32_t number) const noexcept;
  // From now on nobody can agree on this number here: kClosed; unless all have already, or it has passed.
  State close(uint32_t number) noexcept;

  // Rank 0: nobody musters from now on, in this world.
  void forbid() noexcept;

 private:
  bool is_allowed() const noexcept;
  std::atomic<uint64_t>& word(uint32_t number) const noexcept { return header_->muster[number % 2]; }

  transport::ArenaHeader* header_;
  uint64_t size_;
};

}  // namespace farandole::engine
