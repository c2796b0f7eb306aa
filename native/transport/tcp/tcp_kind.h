// Links over TCP, between any two workers: see link_kind.h.
#pragma once

#include "transport/link_kind.h"

namespace farandole::transport {

// A pair has two connections: the control channel, and one that carries nothing but the bytes of the link.
std::vector<Address> tcp_addresses(const Contact& self, const Contact& peer);
void tcp_listen(const EndpointSettings& settings, std::vector<Listener>& listeners, Contact& contact);
bool tcp_fits(const Contact& self, const Contact& peer, bool over_unix);
std::unique_ptr<LinkSetup> begin_tcp(const LinkContext& context, const Contact& peer, ControlChannel& control,
                                     bool connector);

inline constexpr LinkKind kTcpKind = {
    .name = "tcp",
    .description = "a TCP connection of its own, for nothing but the bytes of the link",
    .shares_memory = false,
    .listen = tcp_listen,
    .addresses = tcp_addresses,
    .fits = tcp_fits,
    .begin = begin_tcp,
};

}  // namespace farandole::transport
