#include "transport/tcp/tcp_kind.h"

#include <utility>

#include "base/error.h"
#include "transport/endpoint.h"
#include "transport/tcp/tcp_link.h"

namespace farandole::transport {
namespace {

using base::Code;
using base::Error;

// Throws Error(kUnavailable) for an address that cannot be offered to other workers.
Address address_to_offer(const std::string& host) {
  Address address = ip_address(host, 0);
  if (is_wildcard(address)) {
    throw Error(Code::kUnavailable, "cannot listen on " + host +
                                        ": other workers could not know where to connect; give the address of a "
                                        "network interface (see `ip address`)");
  }
  if (lacks_scope(address)) {
    throw Error(Code::kUnavailable, "cannot listen on " + host +
                                        ": an address of a link needs its interface, as in fe80::1%eth0 (see `ip "
                                        "address`)");
  }
  return address;
}

class TcpSetup final : public LinkSetup {
 public:
  explicit TcpSetup(double failure_deadline_seconds) : failure_deadline_seconds_(failure_deadline_seconds) {}

  bool wants_data_connection() const noexcept override { return true; }
  void take_data_connection(PrivateFd fd) override {
    tune_data(fd.get(), failure_deadline_seconds_);
    data_ = std::move(fd);
  }
  bool complete() const noexcept override { return static_cast<bool>(data_); }

  PeerLink finish(int peer, Watch& watch, WorldStatus& /*world_status*/) override {
    PeerLink made;
    made.kind = kTcpKind.name;
    made.route = describe_connection(data_.get());
    made.link = std::make_unique<TcpLink>(peer, std::move(data_), watch);
    return made;
  }

 private:
  const double failure_deadline_seconds_;
  PrivateFd data_;
};

}  // namespace

void tcp_listen(const EndpointSettings& settings, std::vector<Listener>& listeners, Contact& contact) {
  for (const std::string& host : settings.listen_addresses) {
    listeners.push_back(listen_on(address_to_offer(host)));
    contact.tcp.push_back(listeners.back().address);
  }
}

std::vector<Address> tcp_addresses(const Contact& /*self*/, const Contact& peer) {
  std::vector<Address> addresses;
  for (const Address& address : peer.tcp) {
    const std::vector<Address> routes = as_reached_from_here(address);
    addresses.insert(addresses.end(), routes.begin(), routes.end());
  }
  return addresses;
}

bool tcp_fits(const Contact& /*self*/, const Contact& /*peer*/, bool over_unix) { return !over_unix; }

std::unique_ptr<LinkSetup> begin_tcp(const LinkContext& context, const Contact& /*peer*/, ControlChannel& control,
                                     bool connector) {
  tune_control(control.fd(), context.failure_deadline_seconds);
  if (connector) {
    control.send(ControlFrame(ControlKind::kHeartbeat));
  }
  return std::make_unique<TcpSetup>(context.failure_deadline_seconds);
}

}  // namespace farandole::transport
