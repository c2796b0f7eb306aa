// A link in memory: two rings, one in each worker's arena.
#pragma once

#include "transport/doorbell.h"
#include "transport/fate.h"
#include "transport/link.h"
#include "transport/ring.h"

namespace farandole::transport {

class ShmLink : public Link {
 public:
  // All of them outlive the link. `outgoing` lies in our arena, `incoming` in the peer's.
  ShmLink(int peer, Ring& outgoing, Ring& incoming, Doorbell& doorbell, Fate& fate) noexcept
      : peer_(peer), outgoing_(outgoing), incoming_(incoming), doorbell_(doorbell), fate_(fate) {}

  size_t try_send(std::span<const std::byte> bytes) override;
  size_t try_recv(std::span<std::byte> bytes) override;
  void ring() noexcept override { doorbell_.ring(); }

 private:
  void report_broken();

  const int peer_;
  Ring& outgoing_;
  Ring& incoming_;
  Doorbell& doorbell_;  // the peer's
  Fate& fate_;
};

}  // namespace farandole::transport
