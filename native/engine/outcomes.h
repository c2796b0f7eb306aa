// What becomes of the requests that the engine has taken up: it counts those that are on their way, and tells users
// when they are done.
//
// Threads: for the thread with the progress lock.
#pragma once

#include <memory>
#include <string>
#include <utility>
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
  // Requests of this worker that the engine has taken up and that are not done.
  int in_flight() const noexcept { return in_flight_; }

  // Users hear of it with the next announce().
  void complete(std::unique_ptr<Pending> pending, base::Code code, const std::string& error, int lost_rank) {
    if (pending->completion == nullptr) {
      return;
    }
    --in_flight_;
    recorder_.record(code == base::Code::kOk ? Phase::kDone : Phase::kFailed, *pending);
    if (code == base::Code::kOk) {
      tuning_.measure(*pending);
    }
    pending->completion->code = code;
    pending->completion->error = error;
    pending->completion->lost_rank = lost_rank;
    finished_.push_back(std::move(pending->completion));
  }
  void announce() {
    if (!finished_.empty()) {
      completions_.finish(std::exchange(finished_, {}));
    }
  }

 private:
  Completions& completions_;
  Recorder& recorder_;
  TuningDriver& tuning_;
  int in_flight_ = 0;
  std::vector<std::shared_ptr<Completion>> finished_;  // not yet announced
};

}  // namespace farandole::engine
