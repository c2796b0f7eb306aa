// A std::mutex that clang's -Wthread-safety understands. Annotations say which mutex guards a field, and which mutex
// the caller of a function must hold; clang checks them. Other compilers see a plain mutex.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define FARANDOLE_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define FARANDOLE_THREAD_ANNOTATION(x)
#endif

// On a field: read and written only while the mutex is held.
#define GUARDED_BY(mutex) FARANDOLE_THREAD_ANNOTATION(guarded_by(mutex))
// On a function: the caller holds the mutex.
#define REQUIRES(mutex) FARANDOLE_THREAD_ANNOTATION(requires_capability(mutex))

namespace farandole::base {

class FARANDOLE_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  void lock() FARANDOLE_THREAD_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void unlock() FARANDOLE_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }
  // For the predicate of a Condition, which runs with the mutex held although the checker cannot see that.
  void assert_held() const FARANDOLE_THREAD_ANNOTATION(assert_capability(this)) {}

 private:
  friend class Condition;
  std::mutex mutex_;
};

class FARANDOLE_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) FARANDOLE_THREAD_ANNOTATION(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() FARANDOLE_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class Condition {
 public:
  void notify_all() noexcept { condition_.notify_all(); }

  // Waits until `ready()` is true, at most for this time; returns the last result of `ready()`.
  template <typename Ready>
  bool wait_for(Mutex& mutex, std::chrono::nanoseconds at_most, Ready&& ready) REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const bool is_ready = condition_.wait_for(lock, at_most, ready);
    lock.release();  // the caller still holds it
    return is_ready;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace farandole::base
