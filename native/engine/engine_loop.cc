// The engine thread: its loop in one world, and how it ends.
#include "base/thread.h"
#include "engine/engine.h"

namespace farandole::engine {

using base::Error;
using transport::Cause;
using transport::Sign;

namespace {

// A GPU signals nothing, and its copies usually take some hundred microseconds. The engine thread polls this many times
// longer before it sleeps for a whole millisecond.
constexpr int64_t kGpuPatience = 25;

}  // namespace

void Engine::thread_main() {
  base::prefer_short_turns();
  try {
    live();
  } catch (const Error& error) {
    // Unless the world has ended already, no other worker knows of the failure yet. If the error names a rank, that
    // worker has sent data that cannot be right; otherwise the failure is this worker's own.
    break_off({error.lost_rank() >= 0 ? error.lost_rank() : mesh_->rank(), Sign::kBroken, error.what()});
  } catch (const std::exception& error) {
    break_off({mesh_->rank(), Sign::kBroken,
               "rank " + std::to_string(mesh_->rank()) + " failed inside its engine: " + error.what()});
  }
  // No thread makes progress any more, and all requests are done: nothing waits for the progress lock.
  completions_.run_callbacks();
  const base::MutexLock lock(mutex_);
  thread_running_ = false;
  thread_ended_.notify_all();
}

void Engine::break_off(const Cause& cause) {
  mesh_->world_status().revoke(cause);
  // From here on, this worker's memory may be reused; a worker that still reads it for this generation notices.
  mesh_->arena(mesh_->rank())->serve(transport::kNoGeneration);
  // Memory that others may still write to is not reused until all of them are in the next generation.
  arena_->hold();
  agreement_->revoke();
  if (!agreement_->is_over()) {
    agreement_->end_world(mesh_->world_status().error(), transport::is_certain(mesh_->world_status().cause()->sign));
  }
}

void Engine::live() {
  agreement_->begin();
  while (!agreement_->is_over()) {
    wait_for_work();
    if (!agreement_->is_over()) {
      agreement_->take_turn(transport::Notify::kNow);
    }
    run_callbacks();
  }
  agreement_->wait_for_everyone();
  mesh_->say_goodbye();
}

// Polls, and sleeps once if there is nothing.
void Engine::wait_for_work() {
  const int64_t alarm_ns = agreement_->next_alarm();
  const auto is_due = [alarm_ns] { return alarm_ns != 0 && base::now_ns() >= alarm_ns; };
  const auto ready = [&] { return agreement_->has_work() || is_due(); };
  const int64_t patience_ns = agreement_->watches_gpus() ? settings_.spin_ns * kGpuPatience : settings_.spin_ns;
  transport::Poll poll;
  const bool found = frames_->look(poll, patience_ns, ready, [this] { return progress_lock_.is_wanted(); });
  if (const int64_t ends_ns = agreement_->fast_path_ends(); ends_ns != 0 && base::now_ns() >= ends_ns) {
    agreement_->end_fast_path();  // this is a turn: it may bring work, or the end of the world, so do not sleep now
  } else if (!found && frames_->prepare_sleep(agreement_->sleeps_for(), ready)) {
    sleep_without_progress_lock(alarm_ns);
  }
  if (is_due() && !agreement_->is_over()) {
    agreement_->act_on_alarm();
  }
}

void Engine::run_callbacks() {
  if (!completions_.has_callbacks()) {
    return;
  }
  engine_calls_back_ = true;
  release_progress();
  completions_.nudge();  // threads that wait make progress by themselves
  completions_.run_callbacks();
  engine_calls_back_ = false;
  retake_progress();
}

}  // namespace farandole::engine
