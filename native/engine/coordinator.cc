#include "engine/coordinator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace farandole::engine {
namespace {

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
  const Times times{now_ns - report.first_age_ns, now_ns - report.ready.age_ns, report.last_rank};
  receive_of(report.ranks, report.ready, times, heard);
}

void Coordinator::receive(int rank, const Ready& ready, int64_t now_ns, const Heard& heard) {
  receive_of(RankSet(rank), ready, {now_ns - ready.age_ns, now_ns - ready.age_ns, rank}, heard);
}

void Coordinator::receive_of(const RankSet& ranks, const Ready& ready, const Times& times, const Heard& heard) {
  finished_ += ready.finished ? ranks.size() : 0;
  if (left_) {
    return;  // whatever else they ask for came too late; they will hear so
  }
  if (!ready.introductions.empty() || !ready.formed.empty()) {
    ranks.for_each([&](int rank) { receive_formations(rank, ready); });
  }
  for (const Ready::Known& known : ready.known) {
    receive_known(known, ranks, times, heard);
  }
  for (const Ready::New& fresh : ready.fresh) {
    ranks.for_each([&](int rank) { receive_fresh(fresh, rank, times.of(rank), heard); });
  }
  if (ready.leaving && leaving_ < 0) {
    leaving_ = ranks.lowest();
  }
}

void Coordinator::receive_known(const Ready::Known& known, const RankSet& ranks, const Times& times,
                                const Heard& heard) {
  GroupState& group = group_of(known.group, ranks.lowest());
  const Reporters all = reporters(group, known.group, ranks, times);
  known.bits.for_each([&](uint32_t bit) {
    if (bit >= group.cache.size()) {
      nonsense(ranks.lowest(), "a bit that was never given out");
    }
    const Decision::Agreed& entry = group.cache.at(bit);
    if (heard) {
      ranks.for_each([&](int rank) { heard(rank, known.group, entry.name, entry.signature); });
    }
    if (!report_bit(known.group, group, all, bit)) {
      ranks.for_each([&](int rank) {
        report(known.group, group, rank, entry.name, entry.signature, How::kAsBit, times.of(rank));
      });
    }
  });
}

void Coordinator::receive_fresh(const Ready::New& fresh, int rank, int64_t ready_ns, const Heard& heard) {
  if (heard) {
    heard(rank, fresh.group, fresh.name, fresh.signature);
  }
  if (fresh.signature.kind == Kind::kJoin) {
    join(rank);
  } else {
    report(fresh.group, group_of(fresh.group, rank), rank, fresh.name, fresh.signature,
           fresh.recurs ? How::kRecurring : How::kInFull, ready_ns);
  }
}

// Members are in the order of their ranks, so those between the first and the last one of a range are as many as the
// range has ranks, unless some are not members.
Coordinator::Reporters Coordinator::reporters(const GroupState& group, uint32_t id, const RankSet& ranks,
                                              const Times& times) {
  Reporters all{ranks, {}, times};
  for (const RankSet::Range& range : ranks.ranges()) {
    const int first = group.index_of(range.first);
    const int last = group.index_of(range.last);
    if (first < 0 || last - first != range.last - range.first) {
      nonsense(range.last, "a request in group " + std::to_string(id) + ", of which it is not a member");
    }
    all.indexes.push_back({static_cast<size_t>(first), static_cast<size_t>(last)});
  }
  return all;
}

void Coordinator::report(uint32_t group_id, GroupState& group, int rank, const std::string& name,
                         const Signature& signature, How how, int64_t ready_ns) {
  const auto index = static_cast<size_t>(group.index_of(rank));
  spell_out(group, group.cache.find_name(name));
  Tally& tally = group.tallies[name];
  if (tally.count == 0) {
    ++open_tallies_;
    tally.reported.reset(group.members.size());
  }
  if (!tally.reported.add({index, index})) {
    nonsense(rank, "the request '" + name + "' twice");
  }
  await(group, tally, rank, signature);
  tally.recurs |= how == How::kRecurring;
  if (how != How::kAsBit) {
    tally.in_full.emplace(static_cast<int>(index), signature);
  }
  note(tally, 1, {ready_ns, ready_ns, rank});
  if (tally.count == tally.needed) {
    complete(group_id, group, name);
  } else if (joined_count_ > 0) {
    weigh(group_id, group, name);
  }
}

// Most requests of most steps come this way: no name is looked at.
bool Coordinator::report_bit(uint32_t group_id, GroupState& group, const Reporters& reporters, uint32_t bit) {
  const Decision::Agreed& entry = group.cache.at(bit);
  if (joined_count_ > 0 || entry.signature.kind == Kind::kTransfer ||
      (!group.tallies.empty() && group.tallies.contains(entry.name))) {
    return false;
  }
  if (group.bit_tallies.size() < group.cache.size()) {
    group.bit_tallies.resize(group.cache.size());
  }
  Tally& tally = group.bit_tallies[bit];
  if (tally.count == 0) {
    ++open_tallies_;
    tally.reported.reset(group.members.size());
    tally.needed = group.members.size();
  }
  for (const MemberSet::Range& range : reporters.indexes) {
    if (!tally.reported.add(range)) {
      nonsense(group.members[range.first], "the request '" + entry.name + "' twice");
    }
  }
  note(tally, reporters.ranks.size(), reporters.times);
  if (tally.count == tally.needed) {
    tally.count = 0;
    add_complete(group_id, group, {bit, tally.last_ready_ns, tally.last_rank});
  }
  return true;
}

void Coordinator::note(Tally& tally, int members, const Times& times) {
  const bool is_first = tally.count == 0;
  tally.count += static_cast<size_t>(members);
  const int64_t since_ns = std::min(times.first_ns, times.last_ns);
  tally.since_ns = is_first ? since_ns : std::min(tally.since_ns, since_ns);
  if (is_first || times.last_ns >= tally.last_ready_ns) {
    tally.last_ready_ns = times.last_ns;
    tally.last_rank = times.last_rank;
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
