// Rank 0's part of agreement, after it has counted: what it decides about requests for which no rank is waited for.
#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/coordinator.h"

namespace farandole::engine {
namespace {

// The number of names that were agreed on once and are kept to notice the second time. When this many came only once,
// the next ones are unlikely to come back either.
constexpr size_t kMaxSeenOnce = 1 << 16;

}  // namespace

std::vector<Decision> Coordinator::decide(int64_t now_ns) {
  std::vector<Decision> decisions;
  for (FormationTally::Settled& settled : formations_.take_settled()) {
    Decision& decision = decisions.emplace_back();
    decision.type = Decision::Type::kUseFormed;
    decision.group = settled.group;
    decision.obstacle = std::move(settled.obstacle);
    GroupState& group = groups_.at(settled.group);
    for (Complete& complete : std::exchange(group.held_back, {})) {
      ++open_tallies_;
      add_complete(settled.group, group, std::move(complete));
    }
  }
  for (const uint32_t id : std::exchange(touched_, {})) {
    std::ranges::move(decide_group(id, groups_.at(id), now_ns), std::back_inserter(decisions));
  }
  if (joined_count_ == world_size_) {
    Decision::Agreed all;
    all.signature.kind = Kind::kJoin;
    all.sizes = {last_joined_};
    decisions.emplace_back().agreed.push_back(std::move(all));
    joined_.assign(joined_.size(), false);
    joined_count_ = 0;
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

// One decision, or several if different ranks are absent.
std::vector<Decision> Coordinator::decide_group(uint32_t id, GroupState& group, int64_t now_ns) {
  std::vector<Draft> drafts;
  for (const Complete& complete : std::exchange(group.complete, {})) {
    std::vector<int32_t> absent;
    if (complete.bit == kNoBit) {
      const Tally& tally = complete.tally.mapped();
      if (tally.refusal.empty() && tally.count < tally.needed) {
        absent = group.awaited_by(tally);
      }
    }
    auto draft = std::ranges::find_if(drafts, [&](const Draft& other) { return other.decision.absent == absent; });
    if (draft == drafts.end()) {
      draft = drafts.insert(drafts.end(), Draft{});
      draft->decision.group = id;
      draft->decision.absent = std::move(absent);
    }
    if (complete.bit != kNoBit) {
      draft->decision.known.set(complete.bit);
    } else if (const Tally& tally = complete.tally.mapped(); tally.refusal.empty() && tally.in_full.empty()) {
      draft->decision.known.set(group.cache.find_name(complete.tally.key()));
    } else {
      settle_in_full(group, complete.tally.key(), tally, draft->decision);
    }
    draft->settling_ns += now_ns - complete.last_ready_ns;
    ++draft->requests;
    if (complete.last_ready_ns >= draft->last_ready_ns) {
      draft->last_ready_ns = complete.last_ready_ns;
      draft->decision.last_rank = complete.last_rank;
    }
  }
  std::vector<Decision> decisions;
  for (Draft& draft : drafts) {
    draft.decision.settling_ns = draft.settling_ns / draft.requests;
    decisions.push_back(std::move(draft.decision));
  }
  return decisions;
}

void Coordinator::settle_in_full(GroupState& group, const std::string& name, const Tally& tally, Decision& decision) {
  const uint32_t known = group.cache.find_name(name);
  std::vector<int32_t> asked;
  std::vector<Signature> sent;
  for (size_t index = 0; index < group.members.size(); ++index) {
    if (!tally.reported.contains(index)) {
      continue;
    }
    asked.push_back(group.members[index]);
    const auto full = tally.in_full.find(static_cast<int>(index));
    sent.push_back(full != tally.in_full.end() ? full->second
                                               : own_part(group.cache.at(known), static_cast<int>(index)));
  }
  std::string refusal = tally.refusal;
  if (refusal.empty()) {
    refusal = find_mismatch(name, asked, sent).value_or("");
  }
  Decision::Agreed agreed;
  agreed.name = name;
  agreed.signature = common_part(sent[0]);
  const Kind kind = sent[0].kind;
  if (refusal.empty() && row_of(kind).rows == Rows::kAgreed) {
    for (const Signature& each : sent) {
      agreed.sizes.push_back(each.shape[0]);
    }
  } else if (refusal.empty() && kind == Kind::kAddGroup) {
    uint32_t id = 0;
    refusal = add_group(sent[0], id);
    agreed.sizes = {id};
  } else if (refusal.empty() && kind == Kind::kRemoveGroup) {
    refusal = remove_group(static_cast<uint32_t>(sent[0].shape[0]));
  }
  if (!refusal.empty()) {
    decision.refused.push_back({name, std::move(refusal), std::move(asked)});
    return;
  }
  if (kind != Kind::kAddGroup && kind != Kind::kRemoveGroup) {
    agreed.bit = bit_for(group, name, tally.recurs);
  }
  if (agreed.bit != kNoBit) {
    group.cache.put(agreed);
  }
  decision.agreed.push_back(std::move(agreed));
}

uint32_t Coordinator::bit_for(GroupState& group, const std::string& name, bool recurs) {
  if (const uint32_t known = group.cache.find_name(name); known != kNoBit) {
    return known;
  }
  if (group.seen_once.erase(name) == 0 && !recurs) {
    if (group.seen_once.size() < kMaxSeenOnce) {
      group.seen_once.insert(name);
    }
    return kNoBit;
  }
  return group.cache.size() < kResponseCacheCapacity ? group.cache.size() : kNoBit;
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

std::string Coordinator::name_of(const GroupState& group, const Complete& complete) {
  return complete.bit == kNoBit ? complete.tally.key() : group.cache.at(complete.bit).name;
}

std::string Coordinator::remove_group(uint32_t id) {
  const auto found = groups_.find(id);
  if (id == 0 || found == groups_.end()) {
    return "There is no process set " + std::to_string(id) + " to remove.";
  }
  GroupState& group = found->second;
  spell_out_all(group);
  if (!group.tallies.empty() || !group.complete.empty() || !group.held_back.empty()) {
    return "Process set " + std::to_string(id) + " still has requests in flight, among them '" +
           (!group.tallies.empty()    ? group.tallies.begin()->first
            : !group.complete.empty() ? name_of(group, group.complete.front())
                                      : name_of(group, group.held_back.front())) +
           "'. Finish them on all its ranks before removing it.";
  }
  groups_.erase(found);
  formations_.remove(id);
  free_ids_.push_back(id);
  return "";
}

}  // namespace farandole::engine
