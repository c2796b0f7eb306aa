// Links in shared memory, between workers of one host: see link_kind.h.
#pragma once

#include "transport/link_kind.h"

namespace farandole::transport {

// Whether two workers share a host is found by trying: a Unix socket that can be reached carries the descriptors of
// their arenas over. The socket is then the control channel, and data goes through memory.
std::vector<Address> shm_addresses(const Contact& self, const Contact& peer);
void shm_listen(const EndpointSettings& settings, std::vector<Listener>& listeners, Contact& contact);
bool shm_fits(const Contact& self, const Contact& peer, bool over_unix);
std::unique_ptr<LinkSetup> begin_shm(const LinkContext& context, const Contact& peer, ControlChannel& control,
                                     bool connector);

inline constexpr LinkKind kShmKind = {
    .name = "shm",
    .description = "two ring buffers in memory that both workers of a host map, and direct reads of each other's arena",
    .shares_memory = true,
    .listen = shm_listen,
    .addresses = shm_addresses,
    .fits = shm_fits,
    .begin = begin_shm,
};

}  // namespace farandole::transport
