// What tells whether two workers can share memory: they can if a Unix socket connects them, which is to say, if they
// are in one network namespace of one machine.
#pragma once

#include <string>

namespace farandole::transport {

// A short text, the same for all workers that can reach each other through Unix sockets, and for no others; where the
// system does not tell, a text that is the same on all such systems. `setting`: see EndpointSettings::host_key; workers
// with different ones have different keys.
std::string make_host_key(const std::string& setting);

}  // namespace farandole::transport
