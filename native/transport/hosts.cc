#include "transport/hosts.h"

#include <algorithm>
#include <cstddef>

namespace farandole::transport {

std::vector<int> group_hosts(const Sharing& shares) {
  std::vector<int> lowest_ranks;
  std::vector<std::vector<size_t>> hosts;  // their members
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    auto host = std::ranges::find_if(hosts, [&](const std::vector<size_t>& members) {
      return std::ranges::all_of(members, [&](size_t member) { return shares[rank][member] && shares[member][rank]; });
    });
    if (host == hosts.end()) {
      host = hosts.insert(hosts.end(), std::vector<size_t>());
    }
    host->push_back(rank);
    lowest_ranks.push_back(static_cast<int>(host->front()));
  }
  return lowest_ranks;
}

std::string pack_row(const std::vector<bool>& row) {
  std::string text((row.size() + 7) / 8, '\0');
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i]) {
      text[i / 8] = static_cast<char>(text[i / 8] | 1 << (i % 8));
    }
  }
  return text;
}

std::vector<bool> unpack_row(const std::string& text, int size) {
  std::vector<bool> row(static_cast<size_t>(size));
  if (text.size() != (row.size() + 7) / 8) {
    return row;
  }
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = (text[i / 8] >> (i % 8) & 1) != 0;
  }
  return row;
}

}  // namespace farandole::transport
