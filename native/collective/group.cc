#include "collective/group.h"

#include <algorithm>
#include <map>

namespace farandole::collective {

Topology topology_of(const Group& group, const std::vector<int>& hosts) {
  const auto host_of = [&](int rank) { return hosts[static_cast<size_t>(rank)]; };
  const int members = static_cast<int>(group.size());
  const auto is_with_first = [&](int rank) { return host_of(rank) == host_of(group.members.front()); };
  if (members > 0 && std::ranges::all_of(group.members, is_with_first)) {
    return {members, 1, members};  // without a table
  }
  std::map<int, int> on_host;
  for (const int rank : group.members) {
    ++on_host[host_of(rank)];
  }
  Topology topology{members, static_cast<int>(on_host.size()), members};
  for (const auto& [host, count] : on_host) {
    topology.fewest_on_a_host = std::min(topology.fewest_on_a_host, count);
  }
  return topology;
}

const Topology& TopologyMemo::of(const Group& group, const std::vector<int>& hosts) {
  if (group.members != members_) {
    topology_ = topology_of(group, hosts);
    members_ = group.members;
  }
  return topology_;
}

std::vector<int> members_on_host(const Group& group, const std::vector<int>& hosts, int index) {
  const int host = hosts[static_cast<size_t>(group.members[static_cast<size_t>(index)])];
  std::vector<int> members;
  for (const int rank : group.members) {
    if (hosts[static_cast<size_t>(rank)] == host) {
      members.push_back(rank);
    }
  }
  return members;
}

}  // namespace farandole::collective
