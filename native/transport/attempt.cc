#include "transport/attempt.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "transport/socket.h"

namespace farandole::transport {

Attempt::Attempt(PrivateFd fd, bool connecting, Handshake handshake, const base::Deadline& give_up)
    : fd_(std::move(fd)), connecting_(connecting), handshake_(std::move(handshake)), give_up_(give_up) {
  if (!connecting_) {
    begin();
  }
}

// The connector speaks first; the acceptor waits for its hello.
void Attempt::begin() {
  if (handshake_.wanted() == 0) {
    unsent_ = handshake_.first();
  }
}

short Attempt::events() const noexcept { return connecting_ || !unsent_.empty() ? POLLOUT : POLLIN; }

void Attempt::prove() {
  unsent_ = handshake_.prove();
  advance();
}

void Attempt::advance() {
  if (connecting_) {
    if (connect_outcome(fd_.get()) != 0) {
      failed_ = true;
      return;
    }
    connecting_ = false;
    begin();
  }
  while (!failed_ && send_some() && receive_some()) {
  }
  // The answer to a refused connection is sent as far as it fits now; nothing waits for the rest.
  failed_ = failed_ || handshake_.state() == Handshake::State::kRefused;
}

// Returns whether all has been sent.
bool Attempt::send_some() noexcept {
  while (!unsent_.empty()) {
    const ssize_t sent = ::send(fd_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else if (errno != EINTR) {
      failed_ = true;
      return false;
    }
  }
  return true;
}

// Returns whether a whole message has arrived and was answered.
bool Attempt::receive_some() {
  const size_t wanted = handshake_.wanted();
  while (received_bytes_ < wanted) {
    const ssize_t got = ::recv(fd_.get(), received_.data() + received_bytes_, wanted - received_bytes_, MSG_DONTWAIT);
    if (got > 0) {
      received_bytes_ += static_cast<size_t>(got);
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return false;
    } else if (got == 0 || errno != EINTR) {
      failed_ = true;
      return false;
    }
  }
  if (wanted == 0) {
    return false;
  }
  received_bytes_ = 0;
  unsent_ = handshake_.feed({received_.data(), wanted});
  return true;
}

}  // namespace farandole::transport
