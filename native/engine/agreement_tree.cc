#include "engine/agreement_tree.h"

namespace farandole::engine {

int choose_fanout(const std::vector<int>& hosts, std::optional<int> setting) {
  if (setting) {
    return *setting;
  }
  int count = 0;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    count += hosts[rank] == static_cast<int>(rank) ? 1 : 0;
  }
  return count > kMostHostsOfStar ? kUsualFanout : 0;
}

AgreementTree::AgreementTree(int rank, const std::vector<int>& hosts, int fanout)
    : rank_(rank), fanout_(fanout), parents_(hosts.size(), 0), is_parent_(hosts.size()) {
  if (fanout > 0) {
    std::vector<int> leaders;
    for (int each = 0; each < size(); ++each) {
      const int leader = hosts[static_cast<size_t>(each)];
      if (leader != each) {
        parents_[static_cast<size_t>(each)] = leader;
        continue;
      }
      if (!leaders.empty()) {
        parents_[static_cast<size_t>(each)] = leaders[(leaders.size() - 1) / static_cast<size_t>(fanout)];
      }
      leaders.push_back(each);
    }
  }
  parents_[0] = -1;
  for (int each = 1; each < size(); ++each) {
    const int parent = parents_[static_cast<size_t>(each)];
    is_parent_[static_cast<size_t>(parent)] = true;
    if (parent == rank_) {
      children_.push_back(each);
    }
  }
}

int AgreementTree::child_towards(int rank) const noexcept {
  int at = rank;
  while (at >= 0 && parents_[static_cast<size_t>(at)] != rank_) {
    at = parents_[static_cast<size_t>(at)];
  }
  return at;
}

}  // namespace farandole::engine
