#include "collective/group.h"

#include <map>

namespace farandole::collective {

Topology topology_of(const Group& group, const std::vector<int>& hosts) {
  std::map<int, int> on_host;
  for (const int rank : group.members) {
    ++on_host[hosts[static_cast<size_t>(rank)]];
  }
  Topology topology{static_cast<int>(group.size()), static_cast<int>(on_host.size()), static_cast<int>(group.size())};
  for (const auto& [host, count] : on_host) {
    topology.fewest_on_a_host = std::min(topology.fewest_on_a_host, count);
  }
  return topology;
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
