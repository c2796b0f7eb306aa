// The contact string by which others reach a worker. The roster distributes it (docs/reference/wire.md).
#pragma once

#include <string>
#include <vector>

#include "transport/socket.h"

namespace farandole::transport {

struct Contact {
  std::string id;            // 32 hex digits, random: this endpoint and no other
  std::string host_key;      // see EndpointSettings
  std::string unix_name;     // empty: no shared memory
  std::vector<Address> tcp;  // in the worker's order of preference; without scopes in the text

  std::string to_text() const;
};

// Throws Error(kInvalidArgument).
Contact parse_contact(const std::string& text);

// 128 random bits as 32 hex digits.
std::string random_id();

}  // namespace farandole::transport
