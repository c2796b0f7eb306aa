#include "engine/coordinator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace farandole::engine {
namespace {

// Names that were agreed on once, kept to notice the second time. When so many came only once, the next ones
// are unlikely to come back either.
constexpr size_t kMaxSeenOnce = 1 << 16;

[[noreturn]] void nonsense(int rank, const std::string& what) {
  throw base::Error(base::Code::kInternal, "rank " + std::to_string(rank) + " reports " + what, rank);
}

}  // namespace

int Coordinator::GroupState::index_of(int rank) const {
  const auto at = std::lower_bound(members.begin(), members.end(), rank);
  return at != members.end() && *at == rank ? static_cast<int>(at - members.begin()) : -1;
}

Coordinator::Coordinator(int world_size) : world_size_(world_size) {
  std::vector<int>& all = groups_[0].members;
  all.resize(static_cast<size_t>(world_size));
  std::iota(all.begin(), all.end(), 0);
}

Coordinator::GroupState& Coordinator::group_of(uint32_t id, int rank) {
  const auto found = groups_.find(id);
  if (found == groups_.end() || found->second.index_of(rank) < 0) {
    nonsense(rank, "a request in group " + std::to_string(id) + ", of which it is no member");
  }
  return found->second;
}

void Coordinator::receive(int rank, const Ready& ready) {
  finished_ += ready.finished ? 1 : 0;
  if (left_) {
    return;  // whatever else it asks for came too late; it will hear so
  }
  for (const Ready::Known& known : ready.known) {
    GroupState& group = group_of(known.group, rank);
    known.bits.for_each([&](uint32_t bit) {
      if (bit >= group.catalog.size()) {
        nonsense(rank, "a bit that was never given out");
      }
      report(known.group, group, rank, group.catalog.at(bit).name, nullptr);
    });
  }
  for (const Ready::New& fresh : ready.fresh) {
    report(fresh.group, group_of(fresh.group, rank), rank, fresh.name, &fresh.signature);
  }
  if (ready.leaving && leaving_ < 0) {
    leaving_ = rank;
  }
}

void Coordinator::report(uint32_t group_id, GroupState& group, int rank, const std::string& name,
                         const Signature* in_full) {
  const int index = group.index_of(rank);
  Tally& tally = group.tallies[name];
  tally.reported.resize(group.members.size());
  if (tally.reported[static_cast<size_t>(index)]) {
    nonsense(rank, "the request '" + name + "' twice");
  }
  tally.reported[static_cast<size_t>(index)] = true;
  if (in_full != nullptr) {
    tally.in_full.emplace(index, *in_full);
  }
  if (++tally.count == group.members.size()) {
    if (group.complete.empty()) {
      touched_.push_back(group_id);
    }
    group.complete.push_back(name);
  }
}

std::vector<Decision> Coordinator::decide() {
  std::vector<Decision> decisions;
  for (const uint32_t id : std::exchange(touched_, {})) {
    GroupState& group = groups_.at(id);
    Decision decision;
    decision.group = id;
    for (const std::string& name : std::exchange(group.complete, {})) {
      settle(group, name, decision);
    }
    decisions.push_back(std::move(decision));
  }
  if (leaving_ >= 0 && !left_) {
    Decision& decision = decisions.emplace_back();
    decision.type = Decision::Type::kLeft;
    decision.left_rank = leaving_;
    left_ = true;
  }
  if (finished_ == world_size_) {
    decisions.emplace_back().type = Decision::Type::kGone;
    finished_ = 0;
  }
  return decisions;
}

void Coordinator::settle(GroupState& group, const std::string& name, Decision& decision) {
  const Tally tally = std::move(group.tallies.extract(name).mapped());
  const uint32_t known = group.catalog.find_name(name);
  if (tally.in_full.empty()) {
    decision.known.set(known);
    return;
  }
  std::vector<Signature> sent;
  for (size_t index = 0; index < group.members.size(); ++index) {
    const auto full = tally.in_full.find(static_cast<int>(index));
    sent.push_back(full != tally.in_full.end() ? full->second
                                               : own_part(group.catalog.at(known), static_cast<int>(index)));
  }
  if (const auto mismatch = find_mismatch(name, group.members, sent)) {
    decision.refused.push_back({name, *mismatch});
    return;
  }

  Decision::Agreed agreed;
  agreed.name = name;
  agreed.signature = common_part(sent[0]);
  std::string refusal;
  switch (sent[0].kind) {
    case Kind::kAllgather:
      for (const Signature& each : sent) {
        agreed.sizes.push_back(each.shape[0]);
      }
      break;
    case Kind::kAddGroup: {
      uint32_t id = 0;
      refusal = add_group(sent[0], id);
      agreed.sizes = {id};
      break;
    }
    case Kind::kRemoveGroup:
      refusal = remove_group(static_cast<uint32_t>(sent[0].shape[0]));
      break;
    default:
      break;
  }
  if (!refusal.empty()) {
    decision.refused.push_back({name, refusal});
    return;
  }
  if (sent[0].kind != Kind::kAddGroup && sent[0].kind != Kind::kRemoveGroup) {
    agreed.bit = bit_for(group, name);
  }
  if (agreed.bit != kNoBit) {
    group.catalog.put(agreed);
  }
  decision.agreed.push_back(std::move(agreed));
}

uint32_t Coordinator::bit_for(GroupState& group, const std::string& name) {
  if (const uint32_t known = group.catalog.find_name(name); known != kNoBit) {
    return known;
  }
  if (group.seen_once.erase(name) == 0) {
    if (group.seen_once.size() < kMaxSeenOnce) {
      group.seen_once.insert(name);
    }
    return kNoBit;
  }
  return group.catalog.size() < kCatalogCapacity ? group.catalog.size() : kNoBit;
}

std::string Coordinator::add_group(const Signature& signature, uint32_t& new_id) {
  std::vector<int> members;
  for (const int64_t rank : signature.shape) {
    if (rank < 0 || rank >= world_size_) {
      return "A process set cannot hold rank " + std::to_string(rank) + ": the world has ranks 0 to " +
             std::to_string(world_size_ - 1) + ".";
    }
    members.push_back(static_cast<int>(rank));
  }
  std::ranges::sort(members);
  if (members.empty() || std::ranges::adjacent_find(members) != members.end()) {
    return "A process set needs at least one rank, and each rank once: " + format_shape(signature.shape) + ".";
  }
  for (const auto& [id, group] : groups_) {
    if (group.members == members) {
      return "Attempted to add a duplicate process set: " + format_shape(signature.shape) + " is already process set " +
             std::to_string(id) + ".";
    }
  }
  if (free_ids_.empty()) {
    new_id = next_id_++;
  } else {
    new_id = free_ids_.front();
    free_ids_.pop_front();
  }
  groups_[new_id].members = std::move(members);
  return "";
}

std::string Coordinator::remove_group(uint32_t id) {
  const auto found = groups_.find(id);
  if (id == 0 || found == groups_.end()) {
    return "There is no process set " + std::to_string(id) + " to remove.";
  }
  if (!found->second.tallies.empty()) {
    return "Process set " + std::to_string(id) + " still has requests in flight, among them '" +
           found->second.tallies.begin()->first + "'. Finish them on all its ranks before removing it.";
  }
  groups_.erase(found);
  free_ids_.push_back(id);
  return "";
}

std::vector<Coordinator::Waiting> Coordinator::waiting() const {
  std::vector<Waiting> all;
  for (const auto& [id, group] : groups_) {
    for (const auto& [name, tally] : group.tallies) {
      Waiting waiting{id, name, {}};
      for (size_t index = 0; index < group.members.size(); ++index) {
        if (!tally.reported[index]) {
          waiting.missing.push_back(group.members[index]);
        }
      }
      if (!waiting.missing.empty()) {
        all.push_back(std::move(waiting));
      }
    }
  }
  return all;
}

}  // namespace farandole::engine
