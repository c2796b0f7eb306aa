// The engine's reports of its work: events for the timeline, and statistics.
//
// Threads: stats() and events() are for any thread; everything else is for the thread with the progress lock.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "collective/bucket.h"
#include "collective/group.h"
#include "engine/events.h"
#include "engine/messages.h"
#include "engine/pending.h"

namespace farandole::engine {

struct KindStats {
  uint64_t requests = 0;
  uint64_t buckets = 0;
  uint64_t bytes = 0;
  uint64_t waiting_ns = 0;      // of requests: from submit until the last member was ready
  uint64_t negotiating_ns = 0;  // of requests: from then until this rank knew
  uint64_t moving_ns = 0;       // of buckets
  collective::Copied copied;    // of allreduces that are not compressed
};

// All of it counts from the start of the world.
struct Stats {
  uint64_t rounds = 0;
  uint64_t fast_path_rounds = 0;  // of these rounds, those without messages
  uint64_t sleeps = 0;
  std::array<KindStats, kKinds> kinds{};
};

class Recorder {
 public:
  void begin_world();
  Stats stats() const;
  Events& events() noexcept { return events_; }

  // Something has happened to one request at that time.
  void record(Phase phase, const Pending& pending, int64_t at_ns);
  // A rank has reported a request to rank 0.
  void record_report(int rank, uint32_t group, const std::string& name, const Signature& signature, int64_t now_ns);
  void record_round(uint32_t group, int64_t at_ns);
  void count_fast_path_round();
  // The engine thread has slept and has something to do.
  void record_wake();

  // Measures, for statistics, how long these waited for other ranks, and how long for the decision after that.
  void measure_agreement(int own_rank, const Decision& decision, std::vector<Runnable>& runnables, int64_t now_ns);
  // Numbers a planned bucket, and records what was agreed.
  void number_bucket(std::span<Runnable* const> bucket, int64_t now_ns);
  // A bucket begins and ends. end_bucket() takes what begin_bucket() gave, and returns the time of the end.
  Event begin_bucket(const collective::Group& group, std::span<Runnable* const> bucket);
  int64_t end_bucket(Event event, std::span<Runnable* const> bucket, const collective::Copied& copied);

 private:
  Events events_;
  mutable base::Mutex mutex_;
  Stats stats_ GUARDED_BY(mutex_);
  // --- with the progress lock
  int64_t round_trip_ns_ = 0;  // from a report to the decision that follows at once; an average, 0 if not known
  uint32_t buckets_ = 0;       // the number of the next one
};

}  // namespace farandole::engine
