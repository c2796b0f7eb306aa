// The stall inspector of rank 0: finds requests that some ranks have made and others not for too long, asks the missing
// ranks what they are doing, and says what is to be logged, or that the world is to end. No threads, no I/O.
//
// It acts when the oldest waiting request gets too old, so it costs nothing while nothing waits for long. Then it asks,
// and reports the answers a second later, or as soon as all have answered. It reports again once per warning time at
// most. If the missing requests come in the meantime, it reports nothing.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/coordinator.h"
#include "engine/messages.h"

namespace farandole::engine {

class StallInspector {
 public:
  // The times after which it warns, and ends the world; 0: never.
  StallInspector(double warning_seconds, double shutdown_seconds);

  bool enabled() const noexcept { return warning_ns_ > 0 || shutdown_ns_ > 0; }
  // The time at which inspect() has something to do; 0: not before something waits.
  int64_t next_ns() const noexcept { return next_ns_; }
  // Something waits, at least since now.
  void watch(int64_t now_ns) noexcept;

  struct Findings {
    uint64_t query = 0;  // to be put to `ask`
    std::vector<int> ask;
    std::string warning;           // to be logged
    std::string end;               // why the world is to end
    std::vector<int> responsible;  // the ranks that `end` names
  };
  Findings inspect(int64_t now_ns, const std::vector<Coordinator::Waiting>& waiting);
  void hear(int rank, const StallAnswer& answer);

 private:
  // The answer of a rank: of its engine, and of the program that it runs.
  struct Said {
    std::string engine;
    std::string program;
  };

  Findings ask(int64_t now_ns, std::span<const Coordinator::Waiting> stalled);
  Findings report(int64_t now_ns, std::span<const Coordinator::Waiting> stalled);
  void plan_next(int64_t now_ns, std::span<const Coordinator::Waiting> waiting);
  bool all_answered() const;
  std::string describe(int64_t now_ns, std::span<const Coordinator::Waiting> stalled) const;

  const int64_t warning_ns_;
  const int64_t shutdown_ns_;
  int64_t next_ns_ = 0;
  int64_t warn_after_ns_ = INT64_MIN;  // the last warning holds until then
  uint64_t stall_query_ = 0;
  int64_t asked_ns_ = 0;      // when; 0: no query is open
  std::map<int, Said> said_;  // of the open query, by rank
};

}  // namespace farandole::engine
