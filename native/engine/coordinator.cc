#include "engine/coordinator.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace farandole::engine {
namespace {

// The number of names that were agreed on once and are kept to notice the second time. When this many came only once,
// the next ones are unlikely to come back either.
constexpr size_t kMaxSeenOnce = 1 << 16;

[[noreturn]] void nonsense(int rank, const std::string& what) {
  throw base::Error(base::Code::kInternal, "rank " + std::to_string(rank) + " reports " + what, rank);
}

}  // namespace

int Coordinator::GroupState::index_of(int rank) const {
  const auto at = std::lower_bound(members.begin(), members.end(), rank);
  return at != members.end() && *at == rank ? static_cast<int>(at - members.begin()) : -1;
}

std::vector<int> Coordinator::GroupState::awaited_by(const Tally& tally) const {
  std::vector<int> ranks;
  for (size_t index = 0; index < members.size(); ++index) {
    if (tally.awaits(index)) {
      ranks.push_back(members[index]);
    }
  }
  return ranks;
}

Coordinator::Coordinator(int world_size, bool waits_for_formed)
    : world_size_(world_size), waits_for_formed_(waits_for_formed), joined_(static_cast<size_t>(world_size)) {
  std::vector<int>& all = groups_[0].members;
  all.resize(static_cast<size_t>(world_size));
  std::iota(all.begin(), all.end(), 0);
}

Coordinator::GroupState& Coordinator::group_of(uint32_t id, int rank) {
  const auto found = groups_.find(id);
  if (found == groups_.end() || found->second.index_of(rank) < 0) {
    nonsense(rank, "a request in group " + std::to_string(id) + ", of which it is not a member");
  }
  return found->second;
}

void Coordinator::receive(const Report& report, int64_t now_ns, const Heard& heard) {
  report.ranks.for_each([&](int rank) {
    const bool is_last = rank == report.last_rank;
    // When the ranks in between were ready, nobody says.
    receive_at(rank, report.ready, now_ns - (is_last ? report.ready.age_ns : report.first_age_ns), heard);
  });
}

void Coordinator::receive(int rank, const Ready& ready, int64_t now_ns, const Heard& heard) {
  receive_at(rank, ready, now_ns - ready.age_ns, heard);
}

void Coordinator::receive_at(int rank, const Ready& ready, int64_t ready_ns, const Heard& heard) {
  finished_ += ready.finished ? 1 : 0;
  if (left_) {
    return;  // whatever else it asks for came too late; it will hear so
  }
  receive_formations(rank, ready);
  for (const Ready::Known& known : ready.known) {
    GroupState& group = group_of(known.group, rank);
    known.bits.for_each([&](uint32_t bit) {
      if (bit >= group.cache.size()) {
        nonsense(rank, "a bit that was never given out");
      }
      const Decision::Agreed& entry = group.cache.at(bit);
      if (heard) {
        heard(rank, known.group, entry.name, entry.signature);
      }
      if (!report_bit(known.group, group, rank, bit, ready_ns)) {
        report(known.group, group, rank, entry.name, entry.signature, false, ready_ns);
      }
    });
  }
  for (const Ready::New& fresh : ready.fresh) {
    if (heard) {
      heard(rank, fresh.group, fresh.name, fresh.signature);
    }
    if (fresh.signature.kind == Kind::kJoin) {
      join(rank);
    } else {
      report(fresh.group, group_of(fresh.group, rank), rank, fresh.name, fresh.signature, true, ready_ns);
    }
  }
  if (ready.leaving && leaving_ < 0) {
    leaving_ = rank;
  }
}

void Coordinator::report(uint32_t group_id, GroupState& group, int rank, const std::string& name,
                         const Signature& signature, bool in_full, int64_t ready_ns) {
  const auto index = static_cast<size_t>(group.index_of(rank));
  spell_out(group, group.cache.find_name(name));
  Tally& tally = group.tallies[name];
  if (tally.count == 0) {
    ++open_tallies_;
    tally.reported.resize(group.members.size());
  }
  if (tally.reported[index]) {
    nonsense(rank, "the request '" + name + "' twice");
  }
  await(group, tally, rank, signature);
  if (in_full) {
    tally.in_full.emplace(static_cast<int>(index), signature);
  }
  note(tally, index, rank, ready_ns);
  if (tally.count == tally.needed) {
    complete(group_id, group, name);
  } else if (joined_count_ > 0) {
    weigh(group_id, group, name);
  }
}

// Most requests of most steps come this way: no name is looked at.
bool Coordinator::report_bit(uint32_t group_id, GroupState& group, int rank, uint32_t bit, int64_t ready_ns) {
  const Decision::Agreed& entry = group.cache.at(bit);
  if (joined_count_ > 0 || entry.signature.kind == Kind::kTransfer ||
      (!group.tallies.empty() && group.tallies.contains(entry.name))) {
    return false;
  }
  if (group.bit_tallies.size() < group.cache.size()) {
    group.bit_tallies.resize(group.cache.size());
  }
  const auto index = static_cast<size_t>(group.index_of(rank));
  Tally& tally = group.bit_tallies[bit];
  if (tally.count == 0) {
    ++open_tallies_;
    tally.reported.assign(group.members.size(), false);
    tally.needed = group.members.size();
  }
  if (tally.reported[index]) {
    nonsense(rank, "the request '" + entry.name + "' twice");
  }
  note(tally, index, rank, ready_ns);
  if (tally.count == tally.needed) {
    tally.count = 0;
    add_complete(group_id, group, {bit, tally.last_ready_ns, tally.last_rank});
  }
  return true;
}

void Coordinator::note(Tally& tally, size_t index, int rank, int64_t ready_ns) const {
  const bool is_first = tally.count == 0;
  tally.reported[index] = true;
  ++tally.count;
  tally.since_ns = is_first ? ready_ns : std::min(tally.since_ns, ready_ns);
  if (is_first || ready_ns >= tally.last_ready_ns) {
    tally.last_ready_ns = ready_ns;
    tally.last_rank = rank;
  }
}

void Coordinator::spell_out(GroupState& group, uint32_t bit) {
  if (bit < group.bit_tallies.size() && group.bit_tallies[bit].count > 0) {
    group.tallies[group.cache.at(bit).name] = std::exchange(group.bit_tallies[bit], {});
  }
}

void Coordinator::spell_out_all(GroupState& group) {
  for (uint32_t bit = 0; bit < group.bit_tallies.size(); ++bit) {
    spell_out(group, bit);
  }
}

void Coordinator::await(const GroupState& group, Tally& tally, int rank, const Signature& signature) {
  const bool narrow = tally.count == 0 || !tally.awaited.empty();
  if (signature.kind != Kind::kTransfer || !narrow) {
    tally.awaited.clear();
    tally.needed = group.members.size();
    return;
  }
  // If the ranks differ about which of them take part, all of those must come before that can be said.
  tally.awaited.resize(group.members.size());
  for (const int member : {rank, signature.root, signature.peer}) {
    const int index = group.index_of(member);
    if (index < 0) {
      nonsense(rank, "a transfer with rank " + std::to_string(member) + ", which is not a member of the group");
    }
    tally.awaited[static_cast<size_t>(index)] = true;
  }
  tally.needed = static_cast<size_t>(std::ranges::count(tally.awaited, true));
}

void Coordinator::complete(uint32_t group_id, GroupState& group, const std::string& name) {
  auto tally = group.tallies.extract(name);
  const int64_t last_ready_ns = tally.mapped().last_ready_ns;
  const int last_rank = tally.mapped().last_rank;
  add_complete(group_id, group, {kNoBit, last_ready_ns, last_rank, std::move(tally)});
}

void Coordinator::add_complete(uint32_t group_id, GroupState& group, Complete complete) {
  --open_tallies_;
  if (is_held_back(group_id, group, complete)) {
    group.held_back.push_back(std::move(complete));
    return;
  }
  if (group.complete.empty()) {
    touched_.push_back(group_id);
  }
  group.complete.push_back(std::move(complete));
}

bool Coordinator::is_held_back(uint32_t group_id, const GroupState& group, const Complete& complete) const {
  if (!waits_for_formed_ || !formations_.is_forming(group_id, group.members.size())) {
    return false;
  }
  const auto is_on_device = [](const Signature& signature) { return signature.memory == backend::MemoryKind::kDevice; };
  if (complete.bit != kNoBit) {
    return is_on_device(group.cache.at(complete.bit).signature);
  }
  // If some are not, they differ, and need not wait to be told so.
  const auto& in_full = complete.tally.mapped().in_full;
  return !in_full.empty() && std::ranges::all_of(in_full, [&](const auto& sent) { return is_on_device(sent.second); });
}

// Of a group that was removed meanwhile, nothing.
void Coordinator::receive_formations(int rank, const Ready& ready) {
  for (const Ready::Introduction& introduction : ready.introductions) {
    if (groups_.contains(introduction.group)) {
      formations_.introduce(introduction.group, group_of(introduction.group, rank).members, rank, introduction.bytes);
    }
  }
  for (const backend::Formation::Formed& formed : ready.formed) {
    if (groups_.contains(formed.group)) {
      formations_.hear(formed.group, group_of(formed.group, rank).members, rank, formed.error);
    }
  }
}

void Coordinator::join(int rank) {
  if (joined_[static_cast<size_t>(rank)]) {
    nonsense(rank, "that it has joined, twice");
  }
  joined_[static_cast<size_t>(rank)] = true;
  ++joined_count_;
  last_joined_ = rank;
  for (auto& [id, group] : groups_) {
    spell_out_all(group);
    if (group.index_of(rank) < 0) {
      continue;
    }
    std::vector<std::string> names;
    for (const auto& [name, tally] : group.tallies) {
      names.push_back(name);
    }
    for (const std::string& name : names) {
      weigh(id, group, name);
    }
  }
}

void Coordinator::weigh(uint32_t group_id, GroupState& group, const std::string& name) {
  Tally& tally = group.tallies.at(name);
  std::vector<int> missing = group.awaited_by(tally);
  const bool others_may_come = std::erase_if(missing, [&](int r) { return !joined_[static_cast<size_t>(r)]; }) > 0;
  if (missing.empty()) {
    return;
  }
  const Kind kind = kind_of(group, name, tally);
  if (kind != Kind::kAllreduce) {
    tally.refusal = std::string(engine::name_of(kind)) + " '" + name +
                    "' is not supported while a rank has joined: " + format_ranks(missing) +
                    (missing.size() == 1 ? " has" : " have") +
                    " called join(). Call it on all ranks before the first one joins, or after all have.";
    complete(group_id, group, name);
  } else if (!others_may_come) {
    complete(group_id, group, name);
  }
}

// What was asked for; if the ranks differ, whatever is not an allreduce.
Kind Coordinator::kind_of(const GroupState& group, const std::string& name, const Tally& tally) const {
  Kind kind = Kind::kAllreduce;
  if (tally.in_full.size() < tally.count) {
    kind = group.cache.at(group.cache.find_name(name)).signature.kind;
  }
  for (const auto& [index, signature] : tally.in_full) {
    kind = kind == Kind::kAllreduce ? signature.kind : kind;
  }
  return kind;
}

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
    if (!tally.reported[index]) {
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
    agreed.bit = bit_for(group, name);
  }
  if (agreed.bit != kNoBit) {
    group.cache.put(agreed);
  }
  decision.agreed.push_back(std::move(agreed));
}

uint32_t Coordinator::bit_for(GroupState& group, const std::string& name) {
  if (const uint32_t known = group.cache.find_name(name); known != kNoBit) {
    return known;
  }
  if (group.seen_once.erase(name) == 0) {
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

std::vector<Coordinator::Waiting> Coordinator::waiting() const {
  std::vector<Waiting> all;
  for (const auto& [id, group] : groups_) {
    for (const auto& [name, tally] : group.tallies) {
      all.push_back({id, name, kind_of(group, name, tally), tally.since_ns, group.awaited_by(tally)});
    }
    for (uint32_t bit = 0; bit < group.bit_tallies.size(); ++bit) {
      if (const Tally& tally = group.bit_tallies[bit]; tally.count > 0) {
        const Decision::Agreed& entry = group.cache.at(bit);
        all.push_back({id, entry.name, entry.signature.kind, tally.since_ns, group.awaited_by(tally)});
      }
    }
  }
  return all;
}

}  // namespace farandole::engine
