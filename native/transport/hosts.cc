#include "transport/hosts.h"

#include <cstddef>

namespace farandole::transport {

std::vector<int> group_hosts(const Sharing& shares) {
  const size_t size = shares.size();
  std::vector<int> hosts(size);
  const auto fits = [&](size_t rank, size_t host) {
    for (size_t member = host; member < rank; ++member) {
      if (hosts[member] == static_cast<int>(host) && !(shares[rank][member] && shares[member][rank])) {
        return false;
      }
    }
    return hosts[host] == static_cast<int>(host);
  };
  for (size_t rank = 0; rank < size; ++rank) {
    size_t host = 0;
    while (host < rank && !fits(rank, host)) {
      ++host;
    }
    hosts[rank] = static_cast<int>(host);
  }
  return hosts;
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
