// The ranks that share a host, which is to say, memory.
//
// The contacts say which ones should: those with the same host key (host_key.h). All workers read the same contacts, so
// nobody has to tell anybody, unless a contact is wrong: two virtual machines that were copied while they ran, for
// example, give the same key. Workers that find no shared memory where it should be *correct* this: each tells the
// lowest rank that it does share memory with.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/contact.h"

namespace farandole::transport {

// Returns, for each rank, the lowest rank of its host (itself, if there is no lower one), as the contacts say.
std::vector<int> hosts_of(std::span<const Contact> contacts);

// Ranks whose contacts are wrong, each with the lowest rank that it shares memory with.
using HostCorrections = std::map<int, int>;

// As "8-15:8,20:20": ranks, then the lowest one of their host. None if there are none.
std::string to_text(const HostCorrections& corrections);
// None: the text is not that of corrections in a world of this size.
std::optional<HostCorrections> parse_host_corrections(std::string_view text, int size);

}  // namespace farandole::transport
