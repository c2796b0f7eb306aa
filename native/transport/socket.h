// Sockets, non-blocking and closed on exec: addresses, listening, connecting, and what an errno means for a peer.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "transport/fate.h"
#include "transport/private_fd.h"

namespace farandole::transport {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
  bool is_unix() const noexcept { return storage.ss_family == AF_UNIX; }
};

// An IPv4 or IPv6 address in numbers, without brackets, with a scope where it has one ("fe80::1%eth0").
// Throws Error(kInvalidArgument).
Address ip_address(const std::string& host, uint16_t port);
// A name in the abstract namespace: it has no file and ends with its socket. It is seen by the processes of
// one network namespace.
Address unix_address(const std::string& name);
// "127.0.0.1:4567" or "[::1]:4567", and back. Throws Error(kInvalidArgument).
std::string to_text(const Address& address);
Address parse_address(const std::string& text);

struct Listener {
  PrivateFd fd;
  Address address;  // with the port that the system chose
};
// Throws Error(kUnavailable).
Listener listen_on(const Address& address);

// The next connection; none when nobody waits or the system refuses, see `error` (EAGAIN: nobody waits).
PrivateFd accept_from(const Listener& listener, int& error);

struct Connecting {
  PrivateFd fd;   // none when it failed at once
  int error = 0;  // 0: connected; EINPROGRESS: wait until it can be written; otherwise why it failed
};
Connecting start_connecting(const Address& address);
// How a connect under way came out, once the socket can be written: 0 or an errno.
int connect_outcome(int fd);

// Settings of a TCP connection between workers. A control connection is always read at once, so unacknowledged
// bytes or unanswered probes for the length of the failure deadline mean that the peer is gone. A data
// connection gets far longer: the kernel counts the time that a receiver's window is closed too, and an engine
// that is busy elsewhere is not dead. Its peer's silence shows on the control connection.
void tune_control(int fd, double deadline_seconds);
void tune_data(int fd, double deadline_seconds);

// What an error of a connected socket says about the peer.
Sign sign_of(int error) noexcept;

}  // namespace farandole::transport
