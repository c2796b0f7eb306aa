// The data that two workers of one host exchange over their Unix socket, once both are proven: the descriptors of their
// arena and doorbell, and where in the arena the ring buffer towards the other one lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "transport/arena.h"
#include "transport/link_kind.h"
#include "transport/private_fd.h"

namespace farandole::transport {

struct ShmOffer {
  uint64_t generation = 0;
  uint64_t arena_bytes = 0;
  uint64_t ring_offset = 0;  // of the ring buffer from the sender to the receiver, in the sender's arena
  uint64_t ring_bytes = 0;   // its header included
};

struct ReceivedShmOffer {
  ShmOffer offer;
  PrivateFd memory;
  PrivateFd doorbell;
};

// On a fresh connection this cannot block. If the other worker is gone, that shows when its offer is received. Throws
// Error(kUnavailable).
void send_shm_offer(int socket, const ShmOffer& offer, int memory_fd, int doorbell_fd);

// Throws Error(kUnavailable) when this process can hold no more descriptors.
Exchange receive_shm_offer(int socket, ReceivedShmOffer& received);

// Mappings of other workers' arenas, kept from one generation to the next: mapping is cheap, but touching each
// page anew is not. A memory is known by device and inode, which no other file gets as long as it is mapped.
class MappingCache {
 public:
  // Maps the memory, unless it is mapped already. Null when it is not the sealed memory of an arena of
  // `bytes`. Throws Error(kUnavailable).
  std::shared_ptr<const Mapping> map(int fd, size_t bytes);
  // Unmaps those that are not in use.
  void drop_unused();

 private:
  std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<const Mapping>> mappings_;
};

}  // namespace farandole::transport
