// The engine thread: what it tells of its work. Events, statistics, and what became of requests.
#include <algorithm>
#include <utility>

#include "engine/engine.h"

namespace farandole::engine {

using base::Code;
using collective::Group;

void Engine::number_buckets(const std::vector<std::vector<size_t>>& plan, std::vector<Runnable>& runnables) {
  for (const std::vector<size_t>& bucket : plan) {
    for (const size_t index : bucket) {
      runnables[index].pending->bucket = buckets_;
      if (runnables[index].pending->completion != nullptr) {
        record(Phase::kAgreed, *runnables[index].pending, kNone);
      }
    }
    ++buckets_;
  }
}

// Only durations are compared, never clocks of different hosts: the decision says how long ago, by rank 0's clock, the
// last rank was ready. What the messages took on their way is known to the rank that was last, which waited for nobody.
// What was agreed on without messages has no last rank, and took no time.
void Engine::measure_agreement(const Decision& decision, std::vector<Runnable>& runnables) {
  const int64_t now = base::now_ns();
  const int64_t telling_ns = decision.last_rank < 0 ? 0 : decision.settling_ns + round_trip_ns_;
  int64_t shortest = INT64_MAX;
  for (Runnable& runnable : runnables) {
    Pending& pending = *runnable.pending;
    const int64_t total = now - pending.submitted_ns;
    pending.negotiated_ns = std::min(total, telling_ns);
    pending.waited_ns = total - pending.negotiated_ns;
    shortest = std::min(shortest, total);
  }
  if (decision.last_rank == mesh_->rank() && !runnables.empty()) {
    const int64_t sample = std::max<int64_t>(0, shortest - decision.settling_ns);
    round_trip_ns_ = round_trip_ns_ == 0 ? sample : (7 * round_trip_ns_ + sample) / 8;
  }
}

Event Engine::begin_bucket(const Group& group, const std::vector<Runnable*>& bucket) {
  Event event;
  event.time_ns = base::now_ns();
  event.phase = Phase::kStarted;
  event.kind = bucket.front()->pending->request.signature.kind;
  event.group = group.id;
  event.algorithm = bucket.front()->choice.index;
  event.bucket = bucket.front()->pending->bucket;
  for (const Runnable* runnable : bucket) {
    event.bytes += runnable->pending->request.signature.bytes();
  }
  events_.record(event);
  return event;
}

void Engine::end_bucket(Event event, const std::vector<Runnable*>& bucket) {
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
    return;  // run for others, without data of this rank's
  }
  const base::MutexLock lock(mutex_);
  KindStats& stats = stats_.kinds[static_cast<size_t>(event.kind)];
  stats.requests += bucket.size();
  ++stats.buckets;
  stats.bytes += event.bytes;
  stats.waiting_ns += static_cast<uint64_t>(waited);
  stats.negotiating_ns += static_cast<uint64_t>(negotiated);
  stats.moving_ns += static_cast<uint64_t>(event.time_ns - started);
}

void Engine::record(Phase phase, const Pending& pending, uint32_t algorithm) {
  Event event;
  event.time_ns = phase == Phase::kSubmitted ? pending.submitted_ns : base::now_ns();
  event.bytes = pending.request.signature.bytes();
  event.phase = phase;
  event.kind = pending.request.signature.kind;
  event.group = pending.request.group;
  event.algorithm = algorithm;
  event.bucket = pending.bucket;
  event.name = pending.name_number;
  events_.record(event);
}

void Engine::complete(std::unique_ptr<Pending> pending, Code code, const std::string& error, int lost_rank) {
  if (pending->completion == nullptr) {
    return;
  }
  --in_flight_;
  record(code == Code::kOk ? Phase::kDone : Phase::kFailed, *pending, kNone);
  if (tuning_ != nullptr && code == Code::kOk) {
    measure_for_tuning(*pending);
  }
  pending->completion->code = code;
  pending->completion->error = error;
  pending->completion->lost_rank = lost_rank;
  finished_.push_back(std::move(pending->completion));
}

void Engine::announce_completions() {
  if (!finished_.empty()) {
    completions_.finish(std::exchange(finished_, {}));
  }
}

}  // namespace farandole::engine
