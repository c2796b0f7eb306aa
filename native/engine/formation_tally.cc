#include "engine/formation_tally.h"

namespace farandole::engine {

void FormationTally::introduce(uint32_t group, const std::vector<int>& members, int rank, base::Bytes introduction) {
  State& state = groups_[group];
  state.introductions[rank] = std::move(introduction);
  if (state.introductions.size() == members.size()) {
    Introduced& all = introduced_.emplace_back(Introduced{group, members, {}});
    for (const auto& [member, bytes] : state.introductions) {
      all.introductions.push_back(bytes);
    }
  }
}

void FormationTally::hear(uint32_t group, const std::vector<int>& members, int rank, const std::string& error) {
  State& state = groups_[group];
  state.has_formed.insert(rank);
  if (!error.empty() && state.obstacle.empty()) {
    state.obstacle = "rank " + std::to_string(rank) + ": " + error;
  }
  if (state.has_formed.size() == members.size()) {
    settled_.push_back({group, state.obstacle});
  }
}

void FormationTally::remove(uint32_t group) {
  groups_.erase(group);
  std::erase_if(introduced_, [&](const Introduced& each) { return each.group == group; });
  std::erase_if(settled_, [&](const Settled& each) { return each.group == group; });
}

std::vector<FormationTally::Settled> FormationTally::take_settled() {
  for (const Settled& settled : settled_) {
    groups_[settled.group].is_settled = true;
  }
  return std::exchange(settled_, {});
}

bool FormationTally::is_forming(uint32_t group, size_t members) const {
  const auto found = groups_.find(group);
  return found != groups_.end() && !found->second.is_settled && found->second.introductions.size() == members;
}

}  // namespace farandole::engine
