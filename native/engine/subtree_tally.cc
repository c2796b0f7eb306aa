#include "engine/subtree_tally.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace farandole::engine {
namespace {

// Among so many signatures, the latest ones of a name, one that is the same as a rank's is looked for: where all
// differ, to compare each with each would cost more than to pass some on twice.
constexpr ptrdiff_t kMostCompared = 8;

[[noreturn]] void nonsense(const Report& report, const std::string& what) {
  const int rank = report.ranks.lowest();
  throw base::Error(base::Code::kInternal, "rank " + std::to_string(rank) + " reports " + what, rank);
}

}  // namespace

SubtreeTally::SubtreeTally(const AgreementTree& tree, int64_t hold_ns) : hold_ns_(hold_ns) {
  std::vector<int64_t> all;
  for (int rank = 0; rank < tree.size(); ++rank) {
    is_below_.push_back(tree.is_in_subtree(rank));
    size_ += is_below_.back() ? 1 : 0;
    all.push_back(rank);
  }
  add_group(0, all);
}

SubtreeTally::Group& SubtreeTally::group_of(uint32_t id, const Report& report) {
  const auto found = groups_.find(id);
  if (found == groups_.end()) {
    nonsense(report, "a request in group " + std::to_string(id) + ", of which it is not a member");
  }
  return found->second;
}

void SubtreeTally::add(const Report& report, int64_t now_ns) {
  for (const Ready::Known& known : report.ready.known) {
    Group& group = group_of(known.group, report);
    known.bits.for_each([&](uint32_t bit) {
      if (bit >= group.cache.size()) {
        nonsense(report, "a bit that was never given out");
      }
      count(group, {known.group, bit, group.cache.at(bit).name}, nullptr, report, now_ns);
    });
  }
  for (const Ready::New& fresh : report.ready.fresh) {
    if (fresh.signature.kind == Kind::kJoin) {
      pass_held(now_ns);
      joined_ += report.ranks.size();
      continue;
    }
    if (fresh.signature.kind == Kind::kRemoveGroup) {
      pass_held(now_ns);  // rank 0 removes no group in which something waits
    }
    Group& group = group_of(fresh.group, report);
    count(group, {fresh.group, group.cache.find_name(fresh.name), fresh.name}, &fresh, report, now_ns);
  }
  pass_rest(report, now_ns);
}

void SubtreeTally::count(Group& group, const Asked& asked, const Ready::New* fresh, const Report& report,
                         int64_t now_ns) {
  const Times times{now_ns - report.first_age_ns, now_ns - report.ready.age_ns, report.last_rank};
  const std::optional<Signature> full = fresh == nullptr ? std::nullopt : std::optional(fresh->signature);
  const bool recurs = fresh != nullptr && fresh->recurs;
  if ((full ? *full : group.cache.at(asked.bit).signature).kind == Kind::kTransfer) {
    pass_variant(asked, {full, report.ranks, times, recurs});  // two ranks only
    return;
  }
  Tally& tally = asked.bit != kNoBit ? group.by_bit[asked.bit] : group.by_name[asked.name];
  const auto newest = tally.variants.rbegin();
  const auto oldest = newest + std::min(std::ssize(tally.variants), kMostCompared);
  const auto same = std::find_if(newest, oldest, [&](const Variant& other) { return other.signature == full; });
  if (same == oldest) {
    tally.variants.push_back({full, report.ranks, times, recurs});
  } else {
    if (!same->ranks.add(report.ranks)) {
      nonsense(report, "the request '" + asked.name + "' twice");
    }
    same->recurs |= recurs;
    same->times.first_ns = std::min(same->times.first_ns, times.first_ns);
    if (times.last_ns >= same->times.last_ns) {
      same->times.last_ns = times.last_ns;
      same->times.last_rank = times.last_rank;
    }
  }
  if (tally.waiting == 0) {
    tally.since_ns = now_ns;
    due_ns_ = ++held_ == 1 ? now_ns + hold_ns_ : due_ns_;
  }
  tally.waiting += report.ranks.size();
  const bool is_complete = tally.waiting + tally.passed == group.members;
  if (is_complete || joined_ > 0) {
    pass(asked, tally);
  }
  if (is_complete) {
    forget_passed(group, asked.name);
  }
}

void SubtreeTally::pass(const Asked& asked, Tally& tally) {
  for (Variant& variant : tally.variants) {
    pass_variant(asked, std::move(variant));
  }
  tally.variants.clear();
  tally.passed += std::exchange(tally.waiting, 0);
  --held_;
}

void SubtreeTally::pass_variant(const Asked& asked, Variant variant) {
  Ready& ready = draft_for(variant.ranks, variant.times).ready;
  if (variant.signature) {
    ready.fresh.push_back({asked.group, asked.name, std::move(*variant.signature), variant.recurs});
  } else {
    ready.add_known(asked.group, asked.bit);
  }
}

SubtreeTally::Draft& SubtreeTally::draft_for(const RankSet& ranks, const Times& times) {
  const auto draft = std::ranges::find(requests_, ranks, &Draft::ranks);
  if (draft == requests_.end()) {
    return requests_.emplace_back(Draft{.ranks = ranks, .times = times, .base_ns = times.last_ns, .ready = {}});
  }
  ++draft->requests;
  draft->later_ns += times.last_ns - draft->base_ns;
  draft->times.first_ns = std::min(draft->times.first_ns, times.first_ns);
  if (times.last_ns >= draft->times.last_ns) {
    draft->times.last_ns = times.last_ns;
    draft->times.last_rank = times.last_rank;
  }
  return *draft;
}

void SubtreeTally::pass_held(int64_t since_ns) {
  due_ns_ = INT64_MAX;
  const auto pass_if_old = [&](const Asked& asked, Tally& tally) {
    if (tally.waiting > 0 && tally.since_ns <= since_ns) {
      pass(asked, tally);
    } else if (tally.waiting > 0) {
      due_ns_ = std::min(due_ns_, tally.since_ns + hold_ns_);
    }
  };
  for (auto& [id, group] : groups_) {
    for (uint32_t bit = 0; bit < group.by_bit.size(); ++bit) {
      pass_if_old({id, bit, group.cache.at(bit).name}, group.by_bit[bit]);
    }
    for (auto& [name, tally] : group.by_name) {
      pass_if_old({id, kNoBit, name}, tally);
    }
  }
}

void SubtreeTally::pass_rest(const Report& report, int64_t now_ns) {
  const Ready& ready = report.ready;
  const Times times{now_ns - report.first_age_ns, now_ns - ready.age_ns, report.last_rank};
  Ready rest;
  std::ranges::copy_if(ready.fresh, std::back_inserter(rest.fresh),
                       [](const Ready::New& fresh) { return fresh.signature.kind == Kind::kJoin; });
  rest.introductions = ready.introductions;
  rest.formed = ready.formed;
  rest.leaving = ready.leaving;
  rest.answers = ready.answers;
  if (!rest.empty()) {
    rest_.push_back({.ranks = report.ranks, .times = times, .base_ns = times.last_ns, .ready = std::move(rest)});
  }
  if (!ready.finished) {
    return;
  }
  if (!finished_.add(report.ranks)) {
    nonsense(report, "its end twice");
  }
  if (finished_.size() == size_) {
    Draft& all = rest_.emplace_back(Draft{.ranks = finished_, .times = times, .base_ns = times.last_ns, .ready = {}});
    all.ready.finished = true;
  }
}

std::vector<Report> SubtreeTally::take(int64_t now_ns) {
  if (held_ > 0 && now_ns >= due_ns_) {
    pass_held(now_ns - hold_ns_);
  }
  std::vector<Report> reports;
  for (std::vector<Draft>* const drafts : {&requests_, &rest_}) {
    for (Draft& draft : *drafts) {
      Report& report = reports.emplace_back();
      report.ranks = std::move(draft.ranks);
      report.last_rank = draft.times.last_rank;
      report.first_age_ns = now_ns - draft.times.first_ns;
      report.ready = std::move(draft.ready);
      report.ready.age_ns = now_ns - draft.base_ns - draft.later_ns / draft.requests;
    }
    drafts->clear();
  }
  return reports;
}

// --- on the way down

void SubtreeTally::follow(const Decision& decision) {
  const auto found = groups_.find(decision.group);
  if (decision.type != Decision::Type::kRun || found == groups_.end()) {
    return;
  }
  Group& group = found->second;
  decision.known.for_each([&](uint32_t bit) { group.by_bit.at(bit).passed = 0; });
  for (const Decision::Refused& refused : decision.refused) {
    forget_passed(group, refused.name);
  }
  for (const Decision::Agreed& agreed : decision.agreed) {
    follow_agreed(group, agreed);
  }
}

void SubtreeTally::follow_agreed(Group& group, const Decision::Agreed& agreed) {
  if (agreed.signature.kind == Kind::kJoin) {
    joined_ = 0;
    return;
  }
  forget_passed(group, agreed.name);
  if (agreed.bit != kNoBit) {
    group.cache.put(agreed);
    group.by_bit.resize(group.cache.size());
    if (auto node = group.by_name.extract(agreed.name); !node.empty()) {
      group.by_bit[agreed.bit] = std::move(node.mapped());
    }
  }
  if (agreed.signature.kind == Kind::kAddGroup) {
    add_group(static_cast<uint32_t>(agreed.sizes.at(0)), agreed.signature.shape);
  } else if (agreed.signature.kind == Kind::kRemoveGroup) {
    remove_group(static_cast<uint32_t>(agreed.signature.shape.at(0)));
  }
}

void SubtreeTally::forget_passed(Group& group, const std::string& name) {
  if (const uint32_t bit = group.cache.find_name(name); bit != kNoBit) {
    group.by_bit[bit].passed = 0;
  } else if (const auto named = group.by_name.find(name); named != group.by_name.end()) {
    named->second.passed = 0;
    if (named->second.waiting == 0) {
      group.by_name.erase(named);
    }
  }
}

void SubtreeTally::add_group(uint32_t id, const std::vector<int64_t>& members) {
  groups_[id].members = static_cast<int>(
      std::ranges::count_if(members, [&](int64_t rank) { return is_below_.at(static_cast<size_t>(rank)); }));
}

void SubtreeTally::remove_group(uint32_t id) {
  const auto found = groups_.find(id);
  if (found == groups_.end()) {
    return;
  }
  const auto waits = [](const Tally& tally) { return tally.waiting > 0; };
  held_ -= static_cast<int>(std::ranges::count_if(found->second.by_bit, waits));
  for (const auto& [name, tally] : found->second.by_name) {
    held_ -= waits(tally) ? 1 : 0;
  }
  groups_.erase(found);
}

}  // namespace farandole::engine
