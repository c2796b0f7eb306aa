#include "engine/recorder.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace farandole::engine {

using collective::Group;

void Recorder::number_bucket(std::span<Runnable* const> bucket, int64_t now_ns) {
  for (Runnable* const runnable : bucket) {
    runnable->pending->bucket = buckets_;
    if (runnable->pending->completion != nullptr) {
      record(Phase::kAgreed, *runnable->pending, now_ns);
    }
  }
  ++buckets_;
}

// Only durations are compared, never clocks of different hosts: the decision says how long ago, by rank 0's clock, the
// last rank was ready. The time that messages take is known to the rank that was last, which waited for no other.
// Requests that were agreed on without messages have no last rank, and took no time.
void Recorder::measure_agreement(int own_rank, const Decision& decision, std::vector<Runnable>& runnables,
                                 int64_t now_ns) {
  const int64_t telling_ns = decision.last_rank < 0 ? 0 : decision.settling_ns + round_trip_ns_;
  int64_t shortest = INT64_MAX;
  for (Runnable& runnable : runnables) {
    Pending& pending = *runnable.pending;
    const int64_t total = now_ns - pending.submitted_ns;
    pending.negotiated_ns = std::min(total, telling_ns);
    pending.waited_ns = total - pending.negotiated_ns;
    shortest = std::min(shortest, total);
  }
  if (decision.last_rank == own_rank && !runnables.empty()) {
    const int64_t sample = std::max<int64_t>(0, shortest - decision.settling_ns);
    round_trip_ns_ = round_trip_ns_ == 0 ? sample : (7 * round_trip_ns_ + sample) / 8;
  }
}

Event Recorder::begin_bucket(const Group& group, std::span<Runnable* const> bucket) {
  Event event;
  event.time_ns = base::now_ns();
  event.phase = Phase::kStarted;
  event.kind = bucket.front()->pending->request.signature.kind;
  event.group = group.id;
  event.algorithm = bucket.front()->pending->choice.index;
  event.bucket = bucket.front()->pending->bucket;
  for (const Runnable* runnable : bucket) {
    event.bytes += runnable->pending->request.signature.bytes();
  }
  events_.record(event);
  return event;
}

int64_t Recorder::end_bucket(Event event, std::span<Runnable* const> bucket, const collective::Copied& copied) {
  int64_t waited = 0;
  int64_t negotiated = 0;
  for (const Runnable* runnable : bucket) {
    waited += runnable->pending->waited_ns;
    negotiated += runnable->pending->negotiated_ns;
  }
  const int64_t started = std::exchange(event.time_ns, base::now_ns());
  event.phase = Phase::kMoved;
  events_.record(event);
  if (bucket.front()->pending->completion == nullptr) {
    return event.time_ns;  // run for others, without data of this rank's
  }
  const base::MutexLock lock(mutex_);
  KindStats& stats = stats_.kinds[static_cast<size_t>(event.kind)];
  stats.requests += bucket.size();
  ++stats.buckets;
  stats.bytes += event.bytes;
  stats.waiting_ns += static_cast<uint64_t>(waited);
  stats.negotiating_ns += static_cast<uint64_t>(negotiated);
  stats.moving_ns += static_cast<uint64_t>(event.time_ns - started);
  stats.copied.in += copied.in;
  stats.copied.out += copied.out;
  return event.time_ns;
}

void Recorder::record(Phase phase, const Pending& pending, int64_t at_ns) {
  Event event;
  event.time_ns = at_ns;
  event.bytes = pending.request.signature.bytes();
  event.phase = phase;
  event.kind = pending.request.signature.kind;
  event.group = pending.request.group;
  event.bucket = pending.bucket;
  event.name = pending.name_number;
  events_.record(event);
}

void Recorder::begin_world() {
  round_trip_ns_ = 0;
  buckets_ = 0;
  const base::MutexLock lock(mutex_);
  stats_ = {};
}

Stats Recorder::stats() const {
  const base::MutexLock lock(mutex_);
  return stats_;
}

void Recorder::record_report(int rank, uint32_t group, const std::string& name, const Signature& signature,
                             int64_t now_ns) {
  Event event;
  event.time_ns = now_ns;
  event.phase = Phase::kRankReady;
  event.rank = rank;
  event.kind = signature.kind;
  event.group = group;
  event.bytes = signature.bytes();
  event.name = events_.number_of(name, signature);
  events_.record(event);
}

void Recorder::record_round(uint32_t group, int64_t at_ns) {
  Event round;
  round.time_ns = at_ns;
  round.phase = Phase::kRound;
  round.group = group;
  events_.record(round);
  const base::MutexLock lock(mutex_);
  ++stats_.rounds;
}

void Recorder::count_fast_path_round() {
  const base::MutexLock lock(mutex_);
  ++stats_.fast_path_rounds;
}

void Recorder::record_wake() {
  Event woke;
  woke.time_ns = base::now_ns();
  woke.phase = Phase::kWoke;
  events_.record(woke);
  const base::MutexLock lock(mutex_);
  ++stats_.sleeps;
}

}  // namespace farandole::engine
