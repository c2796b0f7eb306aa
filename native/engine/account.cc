// The engine thread: what it tells of its work. Events, statistics, and what became of requests.
#include <utility>

#include "engine/engine.h"

namespace farandole::engine {

using base::Code;
using collective::Group;

void Engine::number_buckets(const std::vector<std::vector<size_t>>& plan, std::vector<Runnable>& runnables) {
  for (const std::vector<size_t>& bucket : plan) {
    for (const size_t index : bucket) {
      runnables[index].pending->bucket = buckets_;
      record(Phase::kAgreed, *runnables[index].pending, kNone);
    }
    ++buckets_;
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
  uint64_t waited = 0;
  for (const Runnable* runnable : bucket) {
    waited += static_cast<uint64_t>(event.time_ns - runnable->pending->submitted_ns);
  }
  const int64_t started = std::exchange(event.time_ns, base::now_ns());
  event.phase = Phase::kMoved;
  events_.record(event);
  const base::MutexLock lock(mutex_);
  KindStats& stats = stats_.kinds[static_cast<size_t>(event.kind)];
  stats.requests += bucket.size();
  ++stats.buckets;
  stats.bytes += event.bytes;
  stats.waiting_ns += waited;
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
  record(code == Code::kOk ? Phase::kDone : Phase::kFailed, *pending, kNone);
  {
    const base::MutexLock lock(mutex_);
    in_flight_.erase(pending->key);
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
