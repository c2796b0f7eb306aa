// The error of a world that does not form in time: a pure function of each rank's observed progress.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "transport/handshake.h"

namespace farandole::transport {

// A rank that is not ready.
struct UnreadyRank {
  int rank = -1;
  bool linked = false;               // it is linked to this worker, so it waits for another one
  Refusal refusal = Refusal::kNone;  // why its last handshake failed, as far as that is known
};

// Returns whether a refusal can be explained to people: it came from a process that speaks this protocol.
bool is_explained(Refusal refusal) noexcept;

// Requires that `unready` is not empty.
base::Error setup_timeout(uint64_t generation, int self, const std::vector<UnreadyRank>& unready);

}  // namespace farandole::transport
