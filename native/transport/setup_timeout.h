// The errors of a world that does not form in time, or in which a link that is needed later cannot be made: pure
// functions of what one worker has seen of the others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/handshake.h"

namespace farandole::transport {

// A rank that is not linked.
struct MissingRank {
  int rank = -1;
  Refusal refusal = Refusal::kNone;  // why its last handshake failed, as far as that is known
};

// Returns whether a refusal can be explained to people: it came from a process that speaks this protocol.
bool is_explained(Refusal refusal) noexcept;

// `missing` are not linked to this rank. Requires that there are any.
base::Error missing_links(uint64_t generation, int self, const std::vector<MissingRank>& missing);
// `unready` have links to this rank, and do not report that they, and those that report to them, have all links.
// Requires that there are any.
base::Error missing_reports(uint64_t generation, int self, const std::vector<int>& unready);
// This rank has reported to `parent`, which does not answer.
base::Error missing_answer(uint64_t generation, int self, int parent);
// `missing` could not be linked within this time, in a world that has formed. Requires that there are any.
std::string missing_late_links(const std::vector<MissingRank>& missing, double seconds);

}  // namespace farandole::transport
