// The way in which the workers of a host notice at once that one of them dies, however much memory it has.
//
// The kernel closes the sockets of a process that ends only after it has torn down its memory: 0.2 s for each GB.
// Before that, it walks the *robust list* of every thread that ends (set_robust_list(2)): each listed word that holds
// the thread's id is marked with FUTEX_OWNER_DIED, and a thread that sleeps on it is woken. So a worker has a thread
// that does nothing but hold its *lifeline*, a word in its arena, for as long as the endpoint lives; and others sleep
// on it.
//
//   the word                          means
//   0                                 no thread holds it: it was released in good order, or the kernel has no
//                                     robust lists
//   the thread's id (in its own       the worker lives. With FUTEX_WAITERS, another thread sleeps on the word
//     namespace: only a number)
//   FUTEX_OWNER_DIED                  its process is dying: none of its threads runs any more, except for the
//                                     microseconds until the kernel's signal has stopped them
//
// This is less than a robust mutex: a thread that waits for one of those becomes its owner, and can only stop waiting
// after a time-out. A PeerDeathWatcher owns nothing, and ends as soon as it is told to, so that the next world need not
// wait for it. Children that the worker forks hold nothing either: robust lists are not inherited.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "transport/arena.h"

namespace farandole::transport {

class Lifeline {
 public:
  // Holds the lifeline of this arena when it returns; `own` outlives it, at the same address.
  explicit Lifeline(const ArenaView& own);
  // Releases the lifeline in good order: no worker takes that for a death.
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

 private:
  void run();

  std::atomic<uint32_t>& word_;
  std::atomic<uint32_t> held_{0};
  std::atomic<uint32_t> stop_{0};
  std::thread thread_;  // last: it starts when all else is there
};

// Whether the worker whose arena this is has died holding its lifeline.
bool has_died(const ArenaView& arena) noexcept;

// Waits for the death of another worker of this host.
class PeerDeathWatcher {
 public:
  // `died` is called at most once, in a thread of the watcher's own.
  PeerDeathWatcher(std::shared_ptr<const Mapping> memory, std::function<void()> died);
  // When it returns, `died` is not called any more.
  ~PeerDeathWatcher();
  PeerDeathWatcher(const PeerDeathWatcher&) = delete;
  PeerDeathWatcher& operator=(const PeerDeathWatcher&) = delete;

 private:
  void run();
  bool sees_death();

  const std::shared_ptr<const Mapping> memory_;
  const std::function<void()> died_;
  std::atomic<bool> stop_{false};
  base::Mutex mutex_;
  base::Condition changed_;
  bool over_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it starts when all else is there
};

}  // namespace farandole::transport
