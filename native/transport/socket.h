// Sockets, non-blocking and closed on exec: addresses, listening, connecting, and the meaning of an errno for a peer.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "transport/private_fd.h"
#include "transport/world_status.h"

namespace farandole::transport {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
  bool is_unix() const noexcept { return storage.ss_family == AF_UNIX; }
};

// An IPv4 or IPv6 address in numbers, with a scope where it has one ("fe80::1%eth0"); an IPv6 address may stand in
// brackets. Throws Error(kInvalidArgument).
Address ip_address(const std::string& host, uint16_t port);
// A name in the abstract namespace: it has no file and ends with its socket. It is seen by the processes of
// one network namespace.
Address unix_address(const std::string& name);
// "127.0.0.1:4567" or "[::1]:4567", and back. Throws Error(kInvalidArgument).
std::string to_text(const Address& address);
Address parse_address(const std::string& text);
// "127.0.0.1" or "fe80::1%eth0", without the port; "?" if it is not an IP address.
std::string host_of(const Address& address);

// It stands for all addresses of this machine, and so says nothing to another one: 0.0.0.0 or ::, however written.
bool is_wildcard(const Address& address) noexcept;
// An IPv6 address that is one of a link. Its scope names the interface to that link, on this machine only.
bool is_link_local(const Address& address) noexcept;
bool lacks_scope(const Address& address) noexcept;
Address without_scope(Address address) noexcept;
// The addresses under which another machine's address is tried from here: itself or, for a link-local one, itself
// with the scope of each interface that may lead to its link.
std::vector<Address> as_reached_from_here(const Address& address);

struct Listener {
  PrivateFd fd;
  Address address;  // with the port that the system chose
};
// Throws Error(kUnavailable).
Listener listen_on(const Address& address);

// The next connection; none when no connection waits or the system refuses, see `error` (EAGAIN: none waits).
PrivateFd accept_from(const Listener& listener, int& error);

struct Connecting {
  PrivateFd fd;   // none when it failed at once
  int error = 0;  // 0: connected; EINPROGRESS: wait until it can be written; otherwise why it failed
};
Connecting start_connecting(const Address& address);
// The outcome of a connect under way, once the socket can be written: 0 or an errno.
int connect_outcome(int fd);
// The two ends of a connected socket, for people: "10.0.0.1 -> 10.0.0.2", this end first; "?" if it has ended already.
std::string describe_connection(int fd);

// Settings of a TCP connection between workers. A control connection is always read at once, so unacknowledged
// bytes or unanswered probes for the length of the failure deadline mean that the peer is gone. A data
// connection gets far longer: the kernel counts the time that a receiver's window is closed too, and an engine
// that is busy elsewhere is not dead. Its peer's silence shows on the control connection.
void tune_control(int fd, double deadline_seconds);
void tune_data(int fd, double deadline_seconds);

// The meaning of an error of a connected socket for the peer.
Sign sign_of(int error) noexcept;

}  // namespace farandole::transport
