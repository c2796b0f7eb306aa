// Which thread makes progress, and when: a user thread that waits, or the engine thread, which sleeps without the
// progress lock. See progress_lock.h.
#include <algorithm>

#include "engine/engine.h"

namespace farandole::engine {
namespace {

// A user who waits looks so many times longer than the engine thread does before it leaves the rest to that: it has
// nothing better to do, and being woken would take longer.
constexpr int64_t kUserPatience = 50;

}  // namespace

Waited Engine::wait(std::span<const Handle> handles, const base::Deadline& deadline,
                    std::shared_ptr<const Completion>* failed) {
  const auto awaited = completions_.find_all(handles);
  if (!awaited) {
    return Waited::kUnknown;
  }
  come_for(handles);
  bool helped = false;
  bool done = completions_.are_done(*awaited);
  while (!done && !deadline.passed()) {
    if (helped) {
      completions_.wait(*awaited, deadline, [] { return false; });
    } else {
      helped = help(*awaited);
    }
    if (!helped) {
      const ProgressLock::Wish wish(progress_lock_);
      notify();  // the holder of the lock may be about to release it
      completions_.wait(*awaited, deadline, [this] { return progress_lock_.is_free(); });
    }
    done = completions_.are_done(*awaited);
  }
  completions_.see(*awaited);
  if (!done) {
    return Waited::kTimeout;
  }
  if (failed != nullptr) {
    const auto found = std::ranges::find_if(*awaited, [](const auto& each) { return each->code != base::Code::kOk; });
    *failed = found == awaited->end() ? nullptr : *found;
  }
  return Waited::kDone;
}

void Engine::come_for(std::span<const Handle> handles) {
  const base::MutexLock lock(mutex_);
  if (wake_heuristic_.wait(base::now_ns(), handles) && !ended_) {
    mesh_->doorbell().call();
  }
}

void Engine::notify() {
  const base::MutexLock lock(mutex_);
  if (!ended_) {
    mesh_->doorbell().signal();
  }
}

bool Engine::help(const Completions::Awaited& awaited) {
  if (!progress_lock_.try_take()) {
    return false;
  }
  bool something_left = true;
  try {
    mesh_->doorbell().end_sleep();
    const auto ready = [this] { return has_work(); };
    // What ended another user's turn is the engine thread's to deal with; it is called again, in case that this thread
    // has just taken the first call from it.
    const auto goes_on = [this] { return failure_ == nullptr && !world_over_; };
    while (goes_on() && !completions_.are_done(awaited) &&
           frames_->look(settings_.spin_ns * kUserPatience, ready, [] { return false; })) {
      take_turn(transport::Notify::kLate);
    }
    something_left = !goes_on() || !lie_down_after_helping() || outgrew_sleep();
  } catch (...) {
    failure_ = std::current_exception();
  }
  if (something_left) {
    mesh_->doorbell().call();
  }
  release_progress();
  return true;
}

// What others send now is mostly their part in what this worker's user will ask for next. While nothing of its own is
// in flight nothing can run, so that the user deals with it faster than the engine thread would wake up for it.
bool Engine::lie_down_after_helping() {
  end_fast_path();
  const auto ready = [this] { return has_work(); };
  for (int turn = 0; turn < mesh_->size() && !world_over_; ++turn) {
    if (frames_->prepare_sleep(ready)) {
      return true;
    }
    if (in_flight_ > 0) {
      return false;
    }
    take_turn(transport::Notify::kLate);
  }
  return false;
}

bool Engine::outgrew_sleep() {
  const int64_t alarm_ns = next_alarm();
  if (alarm_ns != 0 && alarm_ns < sleeps_until_ns_) {
    return true;
  }
  return !std::ranges::equal(frames_->awaited(), slept_on_, [](const pollfd& now, const pollfd& then) {
    return now.fd == then.fd && now.events == then.events;
  });
}

void Engine::sleep_without_progress_lock() {
  slept_on_ = frames_->awaited();
  const int64_t until_ns = base::now_ns() + int64_t{frames_->sleep_ms()} * 1'000'000;
  sleeps_until_ns_ = until_ns;
  std::vector<pollfd> polled = slept_on_;
  release_progress();
  sleep(std::move(polled), until_ns);
  progress_lock_.take();
  mesh_->doorbell().end_sleep();
  if (failure_ != nullptr) {
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
  Event woke;
  woke.time_ns = base::now_ns();
  woke.phase = Phase::kWoke;
  events_.record(woke);
  const base::MutexLock lock(mutex_);
  ++stats_.sleeps;
}

void Engine::sleep(std::vector<pollfd> polled, int64_t until_ns) {
  for (;;) {
    const int64_t left_ns = until_ns - base::now_ns();
    if (left_ns <= 0) {
      return;
    }
    const int at_most_ms = begin_nap() ? WakeHeuristic::kNapMs : static_cast<int>((left_ns + 999'999) / 1'000'000);
    if (::poll(polled.data(), polled.size(), at_most_ms) != 0 || is_left_alone()) {
      return;
    }
  }
}

bool Engine::begin_nap() {
  const base::MutexLock lock(mutex_);
  naps_ = wake_heuristic_.lasts(base::now_ns());
  return naps_;
}

bool Engine::is_left_alone() {
  const base::MutexLock lock(mutex_);
  if (queue_.empty() || !WakeHeuristic::is_late(queue_.front()->submitted_ns, base::now_ns())) {
    return false;
  }
  wake_heuristic_.lapse();
  return true;
}

void Engine::release_progress() {
  progress_lock_.leave();
  if (progress_lock_.is_wanted()) {
    completions_.nudge();
  }
}

}  // namespace farandole::engine
