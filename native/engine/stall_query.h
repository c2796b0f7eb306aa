// Stall queries at the rank that is asked: rank 0 asks what this worker is doing, because other ranks wait for it; the
// engine answers at once, and passes the query on to the program, which answers when it can.
//
// Threads: wait() and answer() are for the program, in any thread; everything else is for the thread with the progress
// lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "engine/messages.h"

namespace farandole::engine {

// An answer is one line of a report, whatever a program puts into it.
std::string as_one_line(std::string text);

class StallQueries {
 public:
  // Waits for the next query. Returns 1 (`query` is its number), 0 (the deadline has passed), or -1 (there is no world,
  // or it ends).
  int wait(const base::Deadline& deadline, uint64_t& query);
  // Returns false if there is no world; then nothing is kept.
  bool answer(uint64_t query, std::string text);

  void begin_world();
  void end_world();
  void pass_on(uint64_t query);
  bool has_answers() const noexcept { return has_answers_.load(std::memory_order_acquire); }
  std::vector<StallAnswer> take_answers();

 private:
  base::Mutex mutex_;
  base::Condition changed_;
  bool in_world_ GUARDED_BY(mutex_) = false;
  uint64_t last_ GUARDED_BY(mutex_) = 0;   // the query that came last; 0: none
  uint64_t taken_ GUARDED_BY(mutex_) = 0;  // the one that wait() gave last
  std::vector<StallAnswer> answers_ GUARDED_BY(mutex_);
  std::atomic<bool> has_answers_ = false;
};

}  // namespace farandole::engine
