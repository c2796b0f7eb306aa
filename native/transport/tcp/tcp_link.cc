#include "transport/tcp/tcp_link.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>

#include "transport/socket.h"

namespace farandole::transport {

size_t TcpLink::try_send(std::span<const std::byte> bytes) { return try_send_both(bytes, {}); }

size_t TcpLink::try_send_both(std::span<const std::byte> first, std::span<const std::byte> second) {
  // sendmsg() takes addresses of what may be written, and does not write.
  std::array<iovec, 2> parts = {
      {{const_cast<std::byte*>(first.data()), first.size()}, {const_cast<std::byte*>(second.data()), second.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  while (!sent_all_ && !(first.empty() && second.empty())) {
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      return static_cast<size_t>(sent);
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return 0;
    }
    if (errno != EINTR) {
      return end(sent_all_, errno);
    }
  }
  return 0;
}

size_t TcpLink::try_recv(std::span<std::byte> bytes) {
  while (!received_all_ && !bytes.empty()) {
    const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      return static_cast<size_t>(got);
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return 0;
    }
    if (got == 0 || errno != EINTR) {
      return end(received_all_, got == 0 ? 0 : errno);
    }
  }
  return 0;
}

size_t TcpLink::end(bool& direction, int error) noexcept {
  direction = true;
  watch_.suspect(peer_, sign_of(error));
  return 0;
}

}  // namespace farandole::transport
