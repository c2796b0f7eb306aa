#include "transport/pending_world.h"

#include "transport/event_fd.h"

namespace farandole::transport {

PendingWorld::PendingWorld(uint64_t of_generation, std::atomic<uint32_t>& sleeping, int doorbell_fd)
    : generation(of_generation),
      doorbell(&sleeping, doorbell_fd),
      watch_fd(make_event_fd()),
      world_status(&doorbell, watch_fd.get()) {}

void PendingWorld::wake() noexcept { signal_event(watch_fd.get()); }

void PendingWorld::drain() noexcept { drain_event(watch_fd.get()); }

void PendingWorlds::begin(const std::shared_ptr<PendingWorld>& pending_world) {
  const base::MutexLock lock(mutex_);
  latest_ = pending_world->generation;
  pending_world_ = pending_world;
  if (early_ && early_->generation == pending_world->generation) {
    pending_world->world_status.revoke(early_->cause);
  }
  if (early_ && early_->generation <= pending_world->generation) {
    early_.reset();
  }
}

void PendingWorlds::revoke(uint64_t generation, const Cause& cause) {
  // Without the lock: this may be the last owner of the pending world, and destroy it.
  if (const auto pending_world = find(generation, cause); pending_world != nullptr) {
    pending_world->world_status.revoke(cause);
  }
}

// Null if it has gone, or is yet to come: then the revocation is kept.
std::shared_ptr<PendingWorld> PendingWorlds::find(uint64_t generation, const Cause& cause) {
  const base::MutexLock lock(mutex_);
  if (latest_ && generation == *latest_) {
    return pending_world_.lock();
  }
  const bool to_come = !latest_ || generation > *latest_;
  if (to_come && (!early_ || early_->generation < generation)) {
    early_ = {generation, cause};
  }
  return nullptr;
}

}  // namespace farandole::transport
