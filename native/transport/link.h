// A two-way byte channel to one other worker. Never blocks. Used by the engine thread alone.
#pragma once

#include <cstddef>
#include <span>

namespace farandole::transport {

class Link {
 public:
  virtual ~Link() = default;

  // Takes as many bytes as fit now and returns their number; 0 means "not now".
  // A link that finds its peer gone revokes its world's WorldStatus and returns 0 from then on.
  virtual size_t try_send(std::span<const std::byte> bytes) = 0;
  virtual size_t try_recv(std::span<std::byte> bytes) = 0;
  // Takes as many bytes of both as fit now, one after the other: in one packet if the link has packets.
  virtual size_t try_send_both(std::span<const std::byte> first, std::span<const std::byte> second) {
    const size_t sent = first.empty() ? 0 : try_send(first);
    return sent < first.size() || second.empty() ? sent : sent + try_send(second);
  }

  // Whether the peer, after it has sent something, counts up the mail word of our arena: until that changes, there is
  // nothing to receive.
  virtual bool counts_mail() const noexcept { return false; }
  // The descriptor that poll(2) can watch, or -1 for a link in memory, whose peer signals the
  // doorbell after sending and after making room.
  virtual int poll_fd() const noexcept { return -1; }
  // Tells the peer of a link in memory that something was sent. The sender calls it once for everything that it has
  // sent.
  virtual void notify() noexcept {}
};

}  // namespace farandole::transport
