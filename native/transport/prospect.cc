#include "transport/prospect.h"

#include <unistd.h>

namespace farandole::transport {

Prospect::Prospect(uint64_t of_generation, std::atomic<uint32_t>& sleeping, int doorbell_fd)
    : generation(of_generation),
      doorbell(&sleeping, doorbell_fd),
      watch_fd(make_event_fd()),
      fate(&doorbell, watch_fd.get()) {}

void Prospect::wake() noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(watch_fd.get(), &one, sizeof one);
}

void Prospect::drain() noexcept {
  uint64_t wakes = 0;
  [[maybe_unused]] const ssize_t got = ::read(watch_fd.get(), &wakes, sizeof wakes);  // non-blocking
}

void Prospects::begin(const std::shared_ptr<Prospect>& prospect) {
  const base::MutexLock lock(mutex_);
  latest_ = prospect->generation;
  prospect_ = prospect;
  if (early_ && early_->generation == prospect->generation) {
    prospect->fate.revoke(early_->cause);
  }
  if (early_ && early_->generation <= prospect->generation) {
    early_.reset();
  }
}

void Prospects::revoke(uint64_t generation, const Cause& cause) {
  // Without the lock: the last one to hold a prospect may be this one.
  if (const auto prospect = find(generation, cause); prospect != nullptr) {
    prospect->fate.revoke(cause);
  }
}

// Null if it has gone, or is yet to come: then the revocation is kept.
std::shared_ptr<Prospect> Prospects::find(uint64_t generation, const Cause& cause) {
  const base::MutexLock lock(mutex_);
  if (latest_ && generation == *latest_) {
    return prospect_.lock();
  }
  const bool to_come = !latest_ || generation > *latest_;
  if (to_come && (!early_ || early_->generation < generation)) {
    early_ = {generation, cause};
  }
  return nullptr;
}

}  // namespace farandole::transport
