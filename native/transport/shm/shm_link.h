// A link in memory: two ring buffers, one in each worker's arena.
#pragma once

#include "transport/doorbell.h"
#include "transport/link.h"
#include "transport/shm/ring_buffer.h"
#include "transport/world_status.h"

namespace farandole::transport {

class ShmLink : public Link {
 public:
  // All of them outlive the link. `outgoing` lies in our arena, `incoming` in the peer's.
  ShmLink(int peer, RingBuffer& outgoing, RingBuffer& incoming, Doorbell& doorbell, WorldStatus& world_status) noexcept
      : peer_(peer), outgoing_(outgoing), incoming_(incoming), doorbell_(doorbell), world_status_(world_status) {}

  size_t try_send(std::span<const std::byte> bytes) override;
  size_t try_recv(std::span<std::byte> bytes) override;
  void notify() noexcept override { doorbell_.signal(); }

 private:
  void report_broken();

  const int peer_;
  RingBuffer& outgoing_;
  RingBuffer& incoming_;
  Doorbell& doorbell_;  // the peer's
  WorldStatus& world_status_;
};

}  // namespace farandole::transport
