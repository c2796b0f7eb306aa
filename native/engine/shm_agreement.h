// Agreement among the workers of one host on one known request, without messages: each of them announces the request in
// one word of shared memory, and a worker that sees that all have announced it runs it.
//
// Most requests of most scripts are of this kind: all workers make the same request and wait. Messages to rank 0 and
// back would take longer than the collective. Everything else takes the slow path, by messages, and closes the word, so
// that the workers that have announced something there take the slow path as well.
//
// Decisions are numbered, and the word says for which number it stands. A number is used once: either all workers
// have announced their request for it before any of them closed the word, or rank 0 closes the word and then sends a
// decision of that number. There are two words, for odd and even numbers, so that a worker that looks late still finds
// what became of its number, or a later number: then its number is rank 0's decision, or the one before rank 0's
// decision, and that decision says which of the two it is.
//
// A worker that has polled for a while without success may sleep. So a worker that settles a number for which others
// have announced something wakes them, and reads or writes the word before it checks whether they sleep. A sleeper
// announces its sleep before it reads the word for the last time (transport/doorbell.h), so one of the two sees the
// other.
#pragma once

#include <cstdint>
#include <functional>

#include "transport/arena.h"

namespace farandole::engine {

class ShmAgreement {
 public:
  // `header` is that of rank 0's arena; null: there is no agreement in shared memory, and every word is closed.
  ShmAgreement(transport::ArenaHeader* header, int world_size) noexcept;

  enum class State : uint8_t {
    kOpen,    // some are missing
    kAll,     // agreed: it is the decision of this number
    kClosed,  // the slow path
    kPassed   // a later number is at its place
  };
  struct Change {
    State state;
    bool wakes;  // it was open, others have announced something for it, and may sleep until they are woken
  };
  // This worker has the request that `bit` stands for, and has obeyed all decisions before this number. Not kPassed.
  // If all others have announced it, `as_last` is called first: who then sees kAll, sees what it has written, too. If
  // the word is closed meanwhile, it was in vain, and others may already have overwritten what it reads.
  Change announce(uint32_t number, uint32_t bit, const std::function<void()>& as_last = {});
  // The worker whose `as_last` was called. Valid where the state of this number is kAll, until this worker announces
  // something for the next number.
  void set_last(uint32_t number, int rank) noexcept;
  int last(uint32_t number) const noexcept;
  // Whether an announcement may succeed.
  bool is_open(uint32_t number) const noexcept;
  // Returns the state of a number for which this worker has announced something.
  State look(uint32_t number) const noexcept;
  // Closes this number, so that the workers cannot agree on it here. Returns kClosed, unless all have already agreed,
  // or it has passed.
  Change close(uint32_t number) noexcept;

  // Rank 0: no worker announces anything from now on, in this world.
  void forbid() noexcept;

 private:
  bool is_allowed() const noexcept;
  std::atomic<uint64_t>& word(uint32_t number) const noexcept { return header_->shm_agreement[number % 2]; }

  transport::ArenaHeader* header_;
  uint64_t size_;
};

}  // namespace farandole::engine
