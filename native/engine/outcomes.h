// The outcomes of the requests that the engine has taken up: it counts those that are on their way, and tells users
// when they are launched and when they are done.
//
// Threads: for the thread with the progress lock.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/completion.h"
#include "engine/pending.h"
#include "engine/recorder.h"
#include "engine/tuning_driver.h"

namespace farandole::engine {

class Outcomes {
 public:
  Outcomes(Completions& completions, Recorder& recorder, TuningDriver& tuning)
      : completions_(completions), recorder_(recorder), tuning_(tuning) {}

  void begin_world() noexcept { in_flight_ = 0; }
  void take_up(size_t requests) noexcept { in_flight_ += static_cast<int>(requests); }
  // Requests of this worker that the engine has taken up and that are neither launched nor done.
  int in_flight() const noexcept { return in_flight_; }

  // Users are told with the next announce(). `at_ns`: the time.
  void complete(std::unique_ptr<Pending> pending, Outcome outcome, int64_t at_ns);
  // The request is done when the mark is reached. Users are told as for complete().
  void launch(std::unique_ptr<Pending> pending, device::MarkPointer mark);
  void announce();

  // --- launched ones
  bool has_launched() const noexcept { return !launched_.empty(); }
  // Whether a request of this name is launched and not done.
  bool is_launched(uint32_t group, std::string_view name) const;
  // Whether settle() has something to do. This and settle() throw Error(kUnavailable) when a GPU has failed.
  bool has_reached() const;
  // Completes those whose marks are reached, and tells users at once.
  void settle();
  // The launched requests are going to be aborted: those that are done by now succeed, and the rest fails in
  // settle_all().
  void lose_launched() noexcept;
  // The world is over: waits for launched requests, whose data have been exchanged. Those that are lost, or not done by
  // the deadline, fail.
  void settle_all(const base::Deadline& deadline, const base::Error& why);

 private:
  void finish(std::unique_ptr<Pending> pending, Outcome outcome, int64_t at_ns);

  Completions& completions_;
  Recorder& recorder_;
  TuningDriver& tuning_;
  int in_flight_ = 0;
  std::vector<std::unique_ptr<Pending>> launched_;
  // not yet announced
  std::vector<std::shared_ptr<Completion>> newly_launched_;
  std::vector<Completions::Finished> finished_;
};

}  // namespace farandole::engine
