// Wakes an engine that sleeps. One doorbell per worker: its own submitting threads, its watch thread and
// the other workers of its host signal it. A signal costs one load while the engine is awake.
//
// The protocol needs both fences:
//   signaller:  publish the data;  fence;  if (sleeping) write the eventfd
//   sleeper:    sleeping = what for;    fence;  look at the data once more; if nothing: poll(eventfd, ...)
//
// A sleeper announces what it sleeps for: an idle one waits for messages and requests, and is not woken when a sequence
// advances in the middle of a collective (collective/shm_sequence.h), or when others agree on a request in shared
// memory (engine/shm_agreement.h): it would find nothing to do. One that agrees is woken by both a message and an
// agreement. One in the middle of a collective also announces for whose sequence it waits, and is not woken by others.
//
// It announces how it sleeps, too. One that sleeps in place sleeps on the announcing word itself, a futex, and not in
// poll(). It keeps the progress lock (engine/progress_lock.h), and a signal wakes it alone, and not also the engine
// thread, which sleeps in poll() without the lock.
#pragma once

#include <atomic>
#include <cstdint>

namespace farandole::transport {

enum class Sleep : uint32_t {
  kAwake = 0,
  kIdle = 1,
  kMidway = 2,   // in the middle of a collective
  kAgreeing = 3  // idle, and has announced a request on which others have still to agree
};

class Doorbell {
 public:
  // The doorbell does not own either; both outlive it. `sleeping` may lie in shared memory, `event_fd`
  // may be a descriptor received from the worker whose doorbell this is.
  Doorbell(std::atomic<uint32_t>* sleeping, int event_fd) noexcept : sleeping_(sleeping), event_fd_(event_fd) {}

  // Any thread, any process of the host. Call it after publishing what the engine should find.
  void signal() noexcept;
  // The same, if it sleeps for this, and waits for this rank or for anybody.
  void signal(Sleep what_for, int rank) noexcept;
  // Ends the owner's poll() whether it has announced a sleep or not: for a thread that takes another one's place.
  void call() noexcept;

  // The sleeper's side: prepare_sleep(), then look once more, then poll fd(), then end_sleep(). Whoever sees by that
  // look that it now waits for the sequence of another rank than the announced one must not sleep, but begin again.
  static constexpr int kAnybody = -1;
  void prepare_sleep(Sleep what_for, int awaited = kAnybody) noexcept;
  void end_sleep() noexcept;
  // The same in place. The sleep in the middle lasts until a signal, at most for this time.
  void prepare_sleep_in_place(Sleep what_for, int awaited = kAnybody) noexcept;
  void sleep_in_place(int64_t at_most_ns) noexcept;
  void end_sleep_in_place() noexcept;
  // For a thread that goes on in place of the one that said that it sleeps.
  void take_over() noexcept;
  int fd() const noexcept { return event_fd_; }

 private:
  void announce(uint32_t word) noexcept;
  void wake() noexcept;

  std::atomic<uint32_t>* sleeping_;
  int event_fd_;
  uint32_t announced_ = 0;  // by the sleeper
};

}  // namespace farandole::transport
