#include "transport/socket.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>

#include "base/error.h"

namespace farandole::transport {
namespace {

using base::Code;
using base::Error;

// The number of connections that may wait between two generations, when this worker accepts none. The kernel may allow
// fewer.
constexpr int kBacklog = 4096;
// The factor by which a data connection's timeout exceeds the failure deadline.
constexpr double kDataPatience = 30.0;

void set_option(int fd, int level, int name, int value) {
  // Tuning only: a connection without it works.
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

void tune(int fd, double timeout_seconds) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::clamp(timeout_seconds * 1e3, 1.0, 1e9)));
}

std::string without_brackets(const std::string& host) {
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  return bracketed ? host.substr(1, host.size() - 2) : host;
}

// Every address is stored aligned for all families.
const sockaddr_in6& ip6_of(const Address& address) noexcept {
  return reinterpret_cast<const sockaddr_in6&>(address.storage);
}

uint32_t& scope_of(Address& address) noexcept { return reinterpret_cast<sockaddr_in6&>(address.storage).sin6_scope_id; }

// The network links of this machine: the scopes of its own link-local addresses.
std::vector<uint32_t> own_scopes() {
  std::vector<uint32_t> scopes;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) {
    return scopes;
  }
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET6 || (one->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    Address address;
    address.length = sizeof(sockaddr_in6);
    std::memcpy(&address.storage, one->ifa_addr, address.length);
    if (is_link_local(address) && std::find(scopes.begin(), scopes.end(), scope_of(address)) == scopes.end()) {
      scopes.push_back(scope_of(address));
    }
  }
  ::freeifaddrs(all);
  return scopes;
}

}  // namespace

Address ip_address(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(without_brackets(host).c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    throw Error(Code::kInvalidArgument,
                "'" + host + "' is not an IP address; give it in numbers, such as 10.0.0.1 or fd00::1");
  }
  Address address;
  address.length = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return address;
}

Address unix_address(const std::string& name) {
  sockaddr_un un{};
  if (name.empty() || name.size() >= sizeof un.sun_path) {
    throw Error(Code::kInvalidArgument, "'" + name + "' cannot be the name of a Unix socket");
  }
  un.sun_family = AF_UNIX;
  std::memcpy(un.sun_path + 1, name.data(), name.size());  // a leading zero: the abstract namespace
  Address address;
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  std::memcpy(&address.storage, &un, sizeof un);
  return address;
}

std::string to_text(const Address& address) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (address.is_unix() || ::getnameinfo(address.get(), address.length, host, sizeof host, port, sizeof port,
                                         NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "a Unix socket";
  }
  return address.storage.ss_family == AF_INET6 ? "[" + std::string(host) + "]:" + port : std::string(host) + ":" + port;
}

Address parse_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  uint16_t port = 0;
  const char* const end = text.data() + text.size();
  if (colon == std::string::npos || std::from_chars(text.data() + colon + 1, end, port).ptr != end || port == 0) {
    throw Error(Code::kInvalidArgument, "'" + text + "' is not an address and port");
  }
  return ip_address(text.substr(0, colon), port);
}

std::string host_of(const Address& address) {
  char host[NI_MAXHOST];
  const bool numeric = !address.is_unix() &&
                       ::getnameinfo(address.get(), address.length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0;
  return numeric ? host : "?";
}

bool is_wildcard(const Address& address) noexcept {
  if (address.storage.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr.s_addr == htonl(INADDR_ANY);
  }
  return address.storage.ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&ip6_of(address).sin6_addr);
}

bool is_link_local(const Address& address) noexcept {
  return address.storage.ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&ip6_of(address).sin6_addr);
}

bool lacks_scope(const Address& address) noexcept {
  return is_link_local(address) && ip6_of(address).sin6_scope_id == 0;
}

Address without_scope(Address address) noexcept {
  if (is_link_local(address)) {
    scope_of(address) = 0;
  }
  return address;
}

std::vector<Address> as_reached_from_here(const Address& address) {
  if (!is_link_local(address)) {
    return {address};
  }
  std::vector<Address> scoped;
  for (const uint32_t scope : own_scopes()) {
    scoped.push_back(address);
    scope_of(scoped.back()) = scope;
  }
  return scoped;
}

Listener listen_on(const Address& address) {
  Listener listener;
  {
    const ForkHold hold;
    listener.fd = PrivateFd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), hold);
  }
  const int fd = listener.fd.get();
  if (address.storage.ss_family == AF_INET6) {
    set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  }
  listener.address.length = sizeof listener.address.storage;
  if (fd < 0 || ::bind(fd, address.get(), address.length) != 0 || ::listen(fd, kBacklog) != 0 ||
      ::getsockname(fd, listener.address.get(), &listener.address.length) != 0) {
    throw Error(Code::kUnavailable, "cannot listen on " + to_text(address) + ": " + std::strerror(errno) +
                                        "; listen on an address that this machine has (see `ip address`)");
  }
  return listener;
}

PrivateFd accept_from(const Listener& listener, int& error) {
  const ForkHold hold;
  const int fd = ::accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  error = fd < 0 ? errno : 0;
  return {fd, hold};
}

Connecting start_connecting(const Address& address) {
  Connecting connecting;
  {
    const ForkHold hold;
    connecting.fd = PrivateFd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), hold);
  }
  if (!connecting.fd) {
    connecting.error = errno;
  } else if (::connect(connecting.fd.get(), address.get(), address.length) != 0) {
    connecting.error = errno;
    if (errno != EINPROGRESS) {
      connecting.fd.reset();
    }
  }
  return connecting;
}

int connect_outcome(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

std::string describe_connection(int fd) {
  Address here;
  Address there;
  here.length = there.length = sizeof(sockaddr_storage);
  // The connection may have ended already.
  if (::getsockname(fd, here.get(), &here.length) != 0 || ::getpeername(fd, there.get(), &there.length) != 0) {
    return "?";
  }
  return host_of(here) + " -> " + host_of(there);
}

void tune_control(int fd, double deadline_seconds) { tune(fd, deadline_seconds); }

void tune_data(int fd, double deadline_seconds) { tune(fd, deadline_seconds * kDataPatience); }

Sign sign_of(int error) noexcept {
  switch (error) {
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
      return Sign::kSilent;
    default:
      return Sign::kClosed;
  }
}

}  // namespace farandole::transport
