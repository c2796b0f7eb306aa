// Which thread makes progress, and when: a user thread that waits, or the engine thread, which sleeps without the
// progress lock. See progress_lock.h.
#include <algorithm>
#include <utility>

#include "engine/engine.h"

namespace farandole::engine {
namespace {

// A waiting user thread polls this many times longer than the engine thread before it leaves the rest to that thread:
// it has nothing else to do, and being woken would take longer.
constexpr int64_t kUserPatience = 50;

// When a sleep that begins now ends at the latest; `alarm_ns`: when something is due, or 0.
int64_t sleep_ends(int64_t alarm_ns) {
  const int64_t latest_ns = base::now_ns() + transport::FrameMultiplexer::kLongestSleepNs;
  return alarm_ns == 0 ? latest_ns : std::min(alarm_ns, latest_ns);
}

}  // namespace

Waited Engine::wait(std::span<const Handle> handles, Progress progress, const base::Deadline& deadline,
                    std::shared_ptr<const Completion>* failed) {
  const auto awaited = completions_.find_all(handles);
  if (!awaited) {
    return Waited::kUnknown;
  }
  submissions_.begin_wait(handles);
  auto helped = Helped::kTryAgain;
  bool done = completions_.have_come(*awaited, progress);
  if (!done && Completions::in_callback()) {
    throw base::Error(base::Code::kInvalidArgument,
                      "a callback cannot wait for a request: it may be called by the thread that would complete it");
  }
  while (!done && !deadline.passed()) {
    if (helped == Helped::kNothingHappened && !engine_calls_back_) {
      completions_.wait(*awaited, progress, deadline, [this] { return engine_calls_back_.load(); });
    } else {
      helped = help(*awaited, progress, deadline);
    }
    if (helped == Helped::kLockIsTaken) {
      const ProgressLock::Wish wish(progress_lock_);
      submissions_.notify();  // the holder of the lock may be about to release it
      completions_.wait(*awaited, progress, deadline, [this] { return progress_lock_.is_free(); });
    }
    done = completions_.have_come(*awaited, progress);
  }
  std::shared_ptr<const Completion> first_failed = completions_.see(*awaited);
  if (!done) {
    return Waited::kTimeout;
  }
  if (failed != nullptr) {
    *failed = std::move(first_failed);
  }
  return Waited::kDone;
}

Waited Engine::wait_on(std::span<const Handle> handles, device::Ordinal device, device::Stream stream,
                       const base::Deadline& deadline, std::shared_ptr<const Completion>* failed) {
  // In an elastic job, what the program uses must not be undone.
  const Progress progress = settings_.elastic ? Progress::kDone : Progress::kLaunched;
  const Waited waited = wait(handles, progress, deadline, failed);
  if (waited == Waited::kDone) {
    for (const Handle handle : handles) {
      if (const auto completion = completions_.find(handle); completion != nullptr && completion->mark != nullptr) {
        gpus_.get(device).delay(stream, *completion->mark);
      }
    }
  }
  return waited;
}

bool Engine::take(Handle handle, void* target, device::Ordinal device, device::Stream stream) {
  if (completions_.poll(handle) != 1) {
    return false;
  }
  const auto rows = completions_.take_device_data(handle);
  if (rows == nullptr || rows->bytes() == 0) {
    return false;
  }
  device::Gpu& gpu = gpus_.get(device);
  gpu.delay(stream, *completions_.find(handle)->mark);
  gpu.copy(target, rows->data(), rows->bytes(), stream);
  rows->use_in(stream);
  return true;
}

void Engine::clear(void* memory, size_t bytes, device::Ordinal device, device::Stream stream) {
  gpus_.get(device).clear(memory, bytes, stream);
}

Engine::Helped Engine::help(const Completions::Awaited& awaited, Progress progress, const base::Deadline& deadline) {
  if (!progress_lock_.try_take()) {
    return Helped::kLockIsTaken;
  }
  bool something_left = true;
  bool is_demanded = false;
  try {
    mesh_->doorbell().take_over();
    // The engine thread deals with an error that ended another user thread's turn. It is called again, in case this
    // thread has just consumed the first call.
    const auto is_stuck = [this] { return failure_ != nullptr || agreement_->is_over(); };
    // Callbacks are called below, without the lock.
    while (!is_stuck() && !completions_.has_callbacks() && !completions_.have_come(awaited, progress) &&
           look_or_sleep(deadline)) {
      agreement_->take_turn(transport::Notify::kLate);
    }
    // The engine thread, which waits for the lock, checks everything, and may sleep while the fast path is used.
    is_demanded = progress_lock_.is_demanded();
    something_left = !is_demanded && (is_stuck() || !prepare_sleep_after_helping() || !extend_sleep());
  } catch (...) {
    failure_ = std::current_exception();
  }
  if (something_left) {
    mesh_->doorbell().call();
  }
  release_progress();
  const bool has_called = completions_.has_callbacks() && completions_.run_callbacks();
  return has_called || is_demanded ? Helped::kTryAgain : Helped::kNothingHappened;
}

bool Engine::look_or_sleep(const base::Deadline& deadline) {
  if (look(deadline)) {
    return true;
  }
  const int64_t now_ns = base::now_ns();
  const int64_t until_ns = std::min(agreement_->fast_path_ends(), now_ns + deadline.left_ns());
  if (until_ns <= now_ns || agreement_->watches_gpus() || progress_lock_.is_demanded()) {
    return false;
  }
  frames_->sleep_in_place(agreement_->sleeps_for(), until_ns,
                          [&] { return agreement_->has_work() || progress_lock_.is_demanded(); });
  return true;
}

// Looks once or polls, as the heuristic suggests. Returns whether there is work.
bool Engine::look(const base::Deadline& deadline) {
  const bool polls = poll_heuristic_.suggests_poll(agreement_->next_number());
  const int64_t patience_ns = polls ? std::min(settings_.spin_ns * kUserPatience, deadline.left_ns()) : 0;
  transport::Poll poll;
  const bool found = frames_->look(poll, patience_ns, [this] { return agreement_->has_work(); }, [] { return false; });
  if (polls && found) {
    poll_heuristic_.found();
  } else if (polls) {
    poll_heuristic_.gave_up(poll.was_on_shared_core(patience_ns));
  }
  return found;
}

// What others send now is usually their part in this worker's next request. While none of its own requests is in
// flight, nothing can run, so the user thread handles these messages faster than the engine thread would wake up for
// them.
bool Engine::prepare_sleep_after_helping() {
  agreement_->end_fast_path();
  const auto ready = [this] { return agreement_->has_work(); };
  for (int turn = 0; turn < mesh_->size() && !agreement_->is_over(); ++turn) {
    if (frames_->prepare_sleep(agreement_->sleeps_for(), ready)) {
      return true;
    }
    if (outcomes_.in_flight() > 0) {
      return false;
    }
    agreement_->take_turn(transport::Notify::kLate);
  }
  return false;
}

bool Engine::extend_sleep() {
  const int64_t until_ns = sleep_ends(agreement_->next_alarm());
  if (until_ns < sleeps_until_ns_ || !frames_->is_awaited(slept_on_)) {
    return false;
  }
  sleeps_until_ns_ = until_ns;
  return true;
}

void Engine::sleep_without_progress_lock(int64_t alarm_ns) {
  slept_on_ = frames_->awaited();
  sleeps_until_ns_ = sleep_ends(alarm_ns);
  std::vector<pollfd> polled = slept_on_;
  release_progress();
  sleep(std::move(polled));
  retake_progress();
  recorder_.record_wake();
}

void Engine::sleep(std::vector<pollfd> polled) {
  for (;;) {
    const int64_t left_ns = sleeps_until_ns_ - base::now_ns();
    if (left_ns <= 0) {
      return;
    }
    const int at_most_ms = submissions_.begin_short_sleep() ? WakeHeuristic::kShortSleepMs
                                                            : static_cast<int>((left_ns + 999'999) / 1'000'000);
    if (::poll(polled.data(), polled.size(), at_most_ms) != 0 || submissions_.is_overdue()) {
      return;
    }
  }
}

void Engine::release_progress() {
  progress_lock_.leave();
  if (progress_lock_.is_wanted()) {
    completions_.nudge();
  }
}

void Engine::retake_progress() {
  if (progress_lock_.demand()) {
    mesh_->doorbell().signal();  // the thread that has it may sleep
  }
  progress_lock_.take();
  mesh_->doorbell().end_sleep();
  if (failure_ != nullptr) {
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

}  // namespace farandole::engine
