#include "transport/shm/shm_link.h"

namespace farandole::transport {

size_t ShmLink::try_send(std::span<const std::byte> bytes) {
  const auto count = outgoing_.put(bytes);
  if (!count.has_value()) {
    report_broken();
    return 0;
  }
  // Each of the peer's senders adds, and none only stores: so the peer, which sees the last one, sees what all have
  // sent.
  if (*count > 0) {
    mail_.fetch_add(1, std::memory_order_release);
  }
  return *count;
}

size_t ShmLink::try_recv(std::span<std::byte> bytes) {
  const auto taken = incoming_.take(bytes);
  if (!taken.has_value()) {
    report_broken();
    return 0;
  }
  if (taken->was_full) {
    doorbell_.signal();
  }
  return taken->count;
}

// The counters stay wrong, so every later call comes here again; the first cause is the one that counts.
void ShmLink::report_broken() { world_status_.revoke({peer_, Sign::kBroken, describe_loss(peer_, Sign::kBroken)}); }

}  // namespace farandole::transport
