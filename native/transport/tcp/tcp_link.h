// A link over a TCP connection of its own, which carries only its bytes.
#pragma once

#include "transport/link.h"
#include "transport/private_fd.h"
#include "transport/watch.h"

namespace farandole::transport {

class TcpLink : public Link {
 public:
  // `watch` outlives the link. It is told when the connection ends, and knows or finds out whether that is a loss, a
  // goodbye, or a consequence of another worker's loss.
  TcpLink(int peer, PrivateFd fd, Watch& watch) noexcept : peer_(peer), fd_(std::move(fd)), watch_(watch) {}

  size_t try_send(std::span<const std::byte> bytes) override;
  size_t try_recv(std::span<std::byte> bytes) override;
  size_t try_send_both(std::span<const std::byte> first, std::span<const std::byte> second) override;
  // -1 once nothing more can come: poll(2) would report it for ever.
  int poll_fd() const noexcept override { return received_all_ ? -1 : fd_.get(); }

 private:
  size_t end(bool& direction, int error) noexcept;

  const int peer_;
  const PrivateFd fd_;
  Watch& watch_;
  // Two flags: what a peer sent before it left can still be received when nothing can be sent to it any more.
  bool sent_all_ = false;
  bool received_all_ = false;
};

}  // namespace farandole::transport
