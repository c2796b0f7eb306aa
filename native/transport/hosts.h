// The ranks that share a host, by each rank's report of the ranks with which it shares memory.
#pragma once

#include <string>
#include <vector>

namespace farandole::transport {

// shares[a][b]: rank a reports that it shares memory with rank b.
using Sharing = std::vector<std::vector<bool>>;

// Returns, for each rank, the lowest rank of its host. A rank joins the first host all of whose ranks share memory with
// it. So all pairs of members of a host share memory, even if sharing is not transitive.
std::vector<int> group_hosts(const Sharing& shares);

// One row of it as the text of a frame, a bit for each rank, and back. A text of the wrong length reads as none
// shared.
std::string pack_row(const std::vector<bool>& row);
std::vector<bool> unpack_row(const std::string& text, int size);

}  // namespace farandole::transport
