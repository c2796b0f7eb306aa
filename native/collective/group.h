// An ordered subset of the world in which collectives run, and how it lies on hosts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace farandole::collective {

struct Group {
  uint32_t id = 0;
  std::vector<int> members;  // ranks in the world, ascending
  int index = -1;            // where this worker stands in `members`; -1: not a member

  size_t size() const noexcept { return members.size(); }
  bool contains(int rank) const noexcept { return std::binary_search(members.begin(), members.end(), rank); }
  int index_of(int rank) const noexcept {
    const auto at = std::lower_bound(members.begin(), members.end(), rank);
    return at != members.end() && *at == rank ? static_cast<int>(at - members.begin()) : -1;
  }
};

// The facts, besides a tensor's own size, that the choice of an algorithm may depend on. They are the same on all
// members.
struct Topology {
  int members = 1;
  int hosts = 1;
  int fewest_on_a_host = 1;
};

// `hosts` as in transport::Mesh::hosts().
Topology topology_of(const Group& group, const std::vector<int>& hosts);

// The same in one world, whose hosts do not change. It remembers the answer for the group that it was asked about last:
// every request asks, mostly about the same group, and a large one has many members to count.
class TopologyMemo {
 public:
  const Topology& of(const Group& group, const std::vector<int>& hosts);

 private:
  std::vector<int> members_;
  Topology topology_;
};

// The members that share a host with members[index], ascending.
std::vector<int> members_on_host(const Group& group, const std::vector<int>& hosts, int index);

}  // namespace farandole::collective
