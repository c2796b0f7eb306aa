#include "engine/helm.h"

#include <chrono>

namespace farandole::engine {

void Helm::take() {
  const base::MutexLock lock(mutex_);
  engine_waits_ = true;
  const auto left = [this] {
    mutex_.assert_held();
    return !taken_;
  };
  // Whoever is at the helm waits for other workers at most, and so leaves it when they are lost at the latest.
  while (!left_.wait_for(mutex_, std::chrono::hours(1), left)) {
  }
  engine_waits_ = false;
  taken_ = true;
}

bool Helm::try_take() {
  const base::MutexLock lock(mutex_);
  if (taken_ || engine_waits_) {
    return false;
  }
  taken_ = true;
  return true;
}

void Helm::leave() {
  const base::MutexLock lock(mutex_);
  taken_ = false;
  if (engine_waits_) {
    left_.notify_all();
  }
}

bool Helm::is_free() const {
  const base::MutexLock lock(mutex_);
  return !taken_ && !engine_waits_;
}

}  // namespace farandole::engine
