// A connection whose handshake is under way: the bytes of a Handshake carried over a socket.
#pragma once

#include <array>

#include "base/clock.h"
#include "transport/handshake.h"
#include "transport/private_fd.h"

namespace farandole::transport {

class Attempt {
 public:
  // `connecting`: the socket is not connected yet. `give_up` bounds the whole attempt.
  Attempt(PrivateFd fd, bool connecting, Handshake handshake, const base::Deadline& give_up);

  int fd() const noexcept { return fd_.get(); }
  // The events that poll(2) should wait for.
  short events() const noexcept;
  // Moves what can be moved now. Call it whenever poll(2) reports the socket.
  void advance();
  // A connector that is convinced continues only when this is called, because one of several routes to a worker is
  // chosen.
  void prove();

  // The socket was connected, even if the attempt failed later.
  bool connected() const noexcept { return !connecting_; }
  // Once both sides consider the connection proven, it is too late to give up: the other side would take the end of the
  // connection for the end of this worker.
  bool failed() const noexcept { return failed_ || (give_up_.passed() && !proven()); }
  bool convinced() const noexcept { return handshake_.state() == Handshake::State::kConvinced; }
  bool proven() const noexcept { return handshake_.state() == Handshake::State::kProven && unsent_.empty(); }
  const Handshake& handshake() const noexcept { return handshake_; }
  const base::Deadline& give_up() const noexcept { return give_up_; }
  // The connection, once proven: nothing behind the handshake has been read from it.
  PrivateFd take_fd() noexcept { return std::move(fd_); }

 private:
  void begin();
  bool send_some() noexcept;
  bool receive_some();

  PrivateFd fd_;
  bool connecting_;
  Handshake handshake_;
  base::Deadline give_up_;
  bool failed_ = false;
  base::Bytes unsent_;
  std::array<std::byte, Handshake::kLongestMessage> received_;
  size_t received_bytes_ = 0;
};

}  // namespace farandole::transport
