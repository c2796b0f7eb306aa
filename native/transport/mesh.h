// All links of one worker to the other workers of one world. A Mesh belongs to one generation and to the
// engine thread; the next generation gets a new one. Links and mappings of an old generation do not exist
// in a new one, so no byte of the old can be taken for the new.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transport/arena.h"
#include "transport/doorbell.h"
#include "transport/link.h"
#include "transport/world_status.h"

namespace farandole::transport {

class Mesh {
 public:
  virtual ~Mesh() = default;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual uint64_t generation() const noexcept = 0;

  // Requires peer != rank(). The first call for a late link, one that is made only when it is needed, has it made.
  virtual Link& link(int peer) = 0;
  virtual bool is_late(int /*peer*/) const noexcept { return false; }
  // Returns the late links that others have had made since the last call: there may be something to receive.
  virtual std::vector<int> take_late() { return {}; }
  // The engine's own doorbell.
  virtual Doorbell& doorbell() = 0;
  virtual WorldStatus& world_status() = 0;

  // The arena of a worker with which memory is shared (one's own included), or null.
  virtual const ArenaView* arena(int peer) const noexcept = 0;
  // Wakes a worker with which memory is shared if it sleeps for this: in the middle of a collective, after the own
  // sequence advanced, or for an agreement, after this worker settled it.
  virtual void wake(int peer, Sleep what_for) noexcept = 0;
  // For each rank the lowest rank that it shares memory with (itself, if with no lower one): ranks with the
  // same number share a host. The same list on every rank.
  virtual const std::vector<int>& hosts() const noexcept = 0;

  // Says goodbye to all peers: from now on closing a connection is not a loss, on either side.
  virtual void say_goodbye() noexcept = 0;

  // "shm", "tcp", "shm+tcp" or "loopback": for people.
  virtual std::string describe() const = 0;
  // The route of the bytes to one rank, for people: "shared memory", "10.0.0.1 -> 10.0.0.2" or "loopback".
  // Requires peer != rank().
  virtual std::string describe_route(int peer) const = 0;
};

}  // namespace farandole::transport
