// The progress lock: the one thread that holds it does the engine's work.
//
// Most of the time the lock is free: the engine thread sleeps until something happens, takes the lock, does the work
// and sleeps again. But a user thread that waits for a result is awake and has no other work: it takes the lock itself,
// so that for a small collective no other thread has to be woken or waited for. If nothing happens for a while, that
// thread leaves the rest to the engine thread.
//
// Rules: a thread that releases the lock has looked at everything after it said that the engine sleeps
// (FrameMultiplexer::prepare_sleep), or it has called the engine thread. The engine thread goes before user threads, of
// which there may be many; a user thread that wants the lock gets it as soon as the engine thread has nothing to do. A
// user thread that sleeps with the lock is woken by whatever would wake the engine thread, and lets the engine thread
// have the lock if it asks for it.
#pragma once

#include <atomic>

#include "base/mutex.h"

namespace farandole::engine {

class ProgressLock {
 public:
  // For the engine thread, before take(): from now on no user thread gets the lock. Returns whether one has it.
  bool demand();
  // For the engine thread: waits until the lock is free.
  void take();
  // For the thread that has it: whether the engine thread waits for it.
  bool is_demanded() const noexcept { return engine_waits_; }
  // For a user thread: false when another thread holds the lock, or the engine thread waits for it.
  bool try_take();
  void leave();
  // Whether a user thread could take it now.
  bool is_free() const;

  // While one of these lives, a user thread waits for the lock.
  class Wish {
   public:
    explicit Wish(ProgressLock& lock) : lock_(lock) { ++lock_.wishes_; }
    ~Wish() { --lock_.wishes_; }
    Wish(const Wish&) = delete;
    Wish& operator=(const Wish&) = delete;

   private:
    ProgressLock& lock_;
  };
  bool is_wanted() const noexcept { return wishes_ > 0; }

 private:
  mutable base::Mutex mutex_;
  base::Condition left_;
  // The engine thread begins and ends with the lock held: no other thread gets it while there is no engine thread.
  bool taken_ GUARDED_BY(mutex_) = true;
  std::atomic<bool> engine_waits_ = false;  // written with the mutex only
  std::atomic<int> wishes_ = 0;
};

}  // namespace farandole::engine
