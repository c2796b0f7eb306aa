// What can be said of a world from outside before it has a mesh: that it is over already.
//
// A world's status is there from the moment that its forming begins, and passes to its mesh. So there is no time at
// which a revocation is lost: while the world is formed it ends that at once, and later the world. Revocations are for
// one generation each. One for an earlier world is late, and nothing; one for a world that this worker has yet to form
// came early, and is kept until then.
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

// One world, from the moment that its forming begins until its mesh is gone.
struct PendingWorld {
  // Both belong to the endpoint, see Doorbell.
  PendingWorld(uint64_t of_generation, std::atomic<uint32_t>& sleeping, int doorbell_fd);

  // Whoever waits for `watch_fd` shall look around. Any thread.
  void wake() noexcept;
  // The one who waits: from now on, it is to be woken again.
  void drain() noexcept;

  const uint64_t generation;
  Doorbell doorbell;
  const PrivateFd watch_fd;  // an eventfd, for who watches over the world: its forming, then its watch thread
  WorldStatus world_status;
};

// The pending_worlds of one endpoint: at most one world at a time, of ever larger generations.
class PendingWorlds {
 public:
  // The forming of a world begins. It may have been revoked before.
  void begin(const std::shared_ptr<PendingWorld>& pending_world);
  // Any thread. Waits for nobody.
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
