#include "transport/tcp_link.h"

#include <sys/socket.h>

#include <cerrno>

#include "transport/socket.h"

namespace farandole::transport {

size_t TcpLink::try_send(std::span<const std::byte> bytes) {
  while (!sent_all_ && !bytes.empty()) {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
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
