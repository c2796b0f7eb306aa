// Wakes an engine that sleeps. One doorbell per worker: its own submitting threads, its watch thread and
// the other workers of its host signal it. A signal costs one load while the engine is awake.
//
// The protocol needs both fences:
//   signaller:  publish the data;  fence;  if (sleeping) write the eventfd
//   sleeper:    sleeping = how;    fence;  look at the data once more; if nothing: poll(eventfd, ...)
//
// A sleeper announces how it sleeps: an idle one waits for messages and requests, and is not woken when a sequence
// advances in the middle of a collective (collective/shm_sequence.h): it would find nothing to do. One that sleeps in
// place waits for the same, but keeps the progress lock (engine/progress_lock.h). It sleeps on the announcing word
// itself, a futex, and not in poll(), so that a signal wakes it alone and not also the engine thread, which sleeps in
// poll() without the lock.
#pragma once

#include <atomic>
#include <cstdint>

namespace farandole::transport {

enum class Sleep : uint32_t {
  kAwake = 0,
  kIdle = 1,
  kMidway = 2,  // in the middle of a collective
  kInPlace = 3  // see sleep_in_place()
};

class Doorbell {
 public:
  // The doorbell does not own either; both outlive it. `sleeping` may lie in shared memory, `event_fd`
  // may be a descriptor received from the worker whose doorbell this is.
  Doorbell(std::atomic<uint32_t>* sleeping, int event_fd) noexcept : sleeping_(sleeping), event_fd_(event_fd) {}

  // Any thread, any process of the host. Call it after publishing what the engine should find.
  void signal() noexcept;
  // The same, if it sleeps in the middle of a collective.
  void signal_midway() noexcept;
  // Ends the owner's poll() whether it has announced a sleep or not: for a thread that takes another one's place.
  void call() noexcept;

  // The sleeper's side.
  void prepare_sleep(Sleep how) noexcept;  // then look once more, then poll fd(), then end_sleep()
  void end_sleep() noexcept;
  // After prepare_sleep(kInPlace), instead of these two: sleeps until a signal, at most for this time.
  void sleep_in_place(int64_t at_most_ns) noexcept;
  void end_sleep_in_place() noexcept;
  // For a thread that goes on in place of the one that said that it sleeps.
  void take_over() noexcept;
  int fd() const noexcept { return event_fd_; }

 private:
  void wake() noexcept;

  std::atomic<uint32_t>* sleeping_;
  int event_fd_;
};

}  // namespace farandole::transport
