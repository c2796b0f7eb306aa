// A link in memory: two ring buffers, one in each worker's arena.
#pragma once

#include <atomic>
#include <cstdint>

#include "transport/doorbell.h"
#include "transport/link.h"
#include "transport/shm/ring_buffer.h"
#include "transport/world_status.h"

namespace farandole::transport {

class ShmLink : public Link {
 public:
  // All of them outlive the link. `outgoing` lies in our arena, `incoming`, `mail` and `doorbell` are the peer's.
  ShmLink(int peer, RingBuffer& outgoing, RingBuffer& incoming, std::atomic<uint64_t>& mail, Doorbell& doorbell,
          WorldStatus& world_status) noexcept
      : peer_(peer),
        outgoing_(outgoing),
        incoming_(incoming),
        mail_(mail),
        doorbell_(doorbell),
        world_status_(world_status) {}

  size_t try_send(std::span<const std::byte> bytes) override;
  size_t try_recv(std::span<std::byte> bytes) override;
  bool counts_mail() const noexcept override { return true; }
  void notify() noexcept override { doorbell_.signal(); }

 private:
  void report_broken();

  const int peer_;
  RingBuffer& outgoing_;
  RingBuffer& incoming_;
  std::atomic<uint64_t>& mail_;
  Doorbell& doorbell_;
  WorldStatus& world_status_;
};

}  // namespace farandole::transport
