#include "engine/progress_lock.h"

#include <chrono>

namespace farandole::engine {

bool ProgressLock::demand() {
  const base::MutexLock lock(mutex_);
  engine_waits_ = true;
  return taken_;
}

void ProgressLock::take() {
  const base::MutexLock lock(mutex_);
  engine_waits_ = true;
  const auto left = [this] {
    mutex_.assert_held();
    return !taken_;
  };
  // A thread that holds the lock waits for nothing but other workers, so it releases the lock when they are lost, at
  // the latest.
  while (!left_.wait_for(mutex_, std::chrono::hours(1), left)) {
  }
  engine_waits_ = false;
  taken_ = true;
}

bool ProgressLock::try_take() {
  const base::MutexLock lock(mutex_);
  if (taken_ || engine_waits_) {
    return false;
  }
  taken_ = true;
  return true;
}

void ProgressLock::leave() {
  const base::MutexLock lock(mutex_);
  taken_ = false;
  if (engine_waits_) {
    left_.notify_all();
  }
}

bool ProgressLock::is_free() const {
  const base::MutexLock lock(mutex_);
  return !taken_ && !engine_waits_;
}

}  // namespace farandole::engine
