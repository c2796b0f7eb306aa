// A world that may not have a mesh yet, but can be revoked already.
//
// The status of a world exists from the moment that its set-up begins, and passes to its mesh. So no revocation is
// lost: during the set-up it ends the set-up at once, and later it ends the world. Each revocation is for one
// generation. One for an earlier world came too late and is ignored. One for a world that this worker has yet to set up
// came early and is kept until then.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "transport/doorbell.h"
#include "transport/private_fd.h"
#include "transport/world_status.h"

namespace farandole::transport {

// One world, from the beginning of its set-up until its mesh is gone.
struct PendingWorld {
  // Both belong to the endpoint, see Doorbell.
  PendingWorld(uint64_t of_generation, std::atomic<uint32_t>& sleeping, int doorbell_fd);

  // Wakes the thread that waits for `watch_fd`. Any thread.
  void wake() noexcept;
  // Called by the thread that waits, once it is awake: further calls of wake() wake it again.
  void drain() noexcept;

  const uint64_t generation;
  Doorbell doorbell;
  const PrivateFd watch_fd;  // an eventfd: of the set-up, then of the watch thread
  WorldStatus world_status;
};

// The pending worlds of one endpoint: at most one at a time, with ever larger generations.
class PendingWorlds {
 public:
  // The set-up of a world begins. The world may have been revoked before.
  void begin(const std::shared_ptr<PendingWorld>& pending_world);
  // Any thread. Does not block.
  void revoke(uint64_t generation, const Cause& cause);

 private:
  struct Revocation {
    uint64_t generation;
    Cause cause;
  };

  std::shared_ptr<PendingWorld> find(uint64_t generation, const Cause& cause);

  base::Mutex mutex_;
  std::optional<uint64_t> latest_ GUARDED_BY(mutex_);             // the generation that was begun last
  std::weak_ptr<PendingWorld> pending_world_ GUARDED_BY(mutex_);  // of that one
  std::optional<Revocation> early_ GUARDED_BY(mutex_);            // of a later one
};

}  // namespace farandole::transport
