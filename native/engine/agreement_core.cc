#include "engine/agreement_core.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace farandole::engine {

using base::Code;
using base::Error;
using collective::Group;

AgreementCore::AgreementCore(AgreementTree tree, const Group& world, bool waits_for_formed, Recorder& recorder,
                             int64_t hold_ns)
    : tree_(std::move(tree)), reported_(tree_.rank(), world, recorder) {
  if (tree_.rank() == 0) {
    coordinator_.emplace(static_cast<int>(world.size()), waits_for_formed);
  } else if (!tree_.children().empty()) {
    subtree_.emplace(tree_, hold_ns);
  }
}

// A malformed message must not lead outside the tree.
void AgreementCore::require_in_world(const RankSet& ranks, int from) const {
  if (!ranks.empty() && ranks.highest() >= tree_.size()) {
    throw Error(Code::kInternal,
                "malformed message: rank " + std::to_string(from) + " names rank " + std::to_string(ranks.highest()) +
                    ", which the world does not have",
                from);
  }
}

std::vector<Report> AgreementCore::read(int child, std::span<const std::byte> bytes) const {
  std::vector<Report> reports;
  try {
    if (tree_.has_children(child)) {
      reports = decode_reports(bytes);
    } else {
      Ready ready = decode_ready(bytes);
      reports.push_back({RankSet(child), child, ready.age_ns, std::move(ready)});
    }
  } catch (const Error& error) {  // the failure is the child's, not this rank's
    throw Error(error.code(), "rank " + std::to_string(child) + " sends what cannot be right: " + error.what(), child);
  }
  for (const Report& report : reports) {
    require_in_world(report.ranks, child);
  }
  return reports;
}

Report AgreementCore::own_report(Ready ready) const {
  return {RankSet(tree_.rank()), tree_.rank(), ready.age_ns, std::move(ready)};
}

std::vector<int> AgreementCore::next_hops(const Decision& decision) const {
  if (decision.type != Decision::Type::kStallQuery) {
    return tree_.children();
  }
  require_in_world(decision.asked, 0);
  std::vector<int> hops;
  decision.asked.for_each([&](int rank) {
    const int child = tree_.child_towards(rank);
    if (child >= 0 && std::ranges::find(hops, child) == hops.end()) {
      hops.push_back(child);
    }
  });
  return hops;
}

void AgreementCore::advance(const Decision& decision) {
  if (decision.type == Decision::Type::kStallQuery) {
    return;  // it has no place in the order
  }
  if (decision.number != next_number()) {
    throw Error(Code::kInternal, "decision " + std::to_string(decision.number) + " came after decision " +
                                     std::to_string(decisions_) + ". This is a bug of farandole's");
  }
  decisions_ = decision.number;
}

void AgreementCore::take(const Decision& decision, Taken& taken) {
  const bool absent = std::ranges::find(decision.absent, tree_.rank()) != decision.absent.end();
  const auto take_if_mine = [&](const Decision::Agreed& agreed, uint32_t bit) {
    if (!takes_part(agreed.signature, tree_.rank())) {
      return;
    }
    if (absent) {
      taken.runnables.push_back({ReportedRequests::absent_part(decision.group, agreed)});
    } else {
      take_agreed(decision.group, agreed, bit, taken);
    }
  };
  decision.known.for_each([&](uint32_t bit) { take_if_mine(reported_.cache(decision.group)->at(bit), bit); });
  for (const Decision::Agreed& agreed : decision.agreed) {
    if (agreed.bit != kNoBit) {
      reported_.put(decision.group, agreed);
    }
    take_if_mine(agreed, kNoBit);
  }
  for (const Decision::Refused& refused : decision.refused) {
    if (std::ranges::find(refused.asked, tree_.rank()) != refused.asked.end()) {
      taken.refused.push_back({reported_.take(decision.group, refused.name, kNoBit), refused.reason});
    }
  }
}

void AgreementCore::take_agreed(uint32_t group, const Decision::Agreed& agreed, uint32_t bit, Taken& taken) {
  if (agreed.signature.kind == Kind::kJoin) {
    Runnable& joined = taken.runnables.emplace_back(Runnable{reported_.take_join(), agreed.sizes});
    joined.pending->completion->sizes = agreed.sizes;
    taken.joined = true;
    return;
  }
  Runnable& runnable = taken.runnables.emplace_back(Runnable{reported_.take(group, agreed.name, bit), agreed.sizes});
  if (agreed.signature.kind == Kind::kAddGroup) {
    add_group(agreed, taken);
    runnable.pending->completion->sizes = agreed.sizes;
  } else if (agreed.signature.kind == Kind::kRemoveGroup) {
    const auto id = static_cast<uint32_t>(agreed.signature.shape.at(0));
    reported_.remove_group(id);
    taken.removed.push_back(id);
  }
}

void AgreementCore::add_group(const Decision::Agreed& agreed, Taken& taken) {
  Group group;
  group.id = static_cast<uint32_t>(agreed.sizes.at(0));
  group.members.assign(agreed.signature.shape.begin(), agreed.signature.shape.end());
  std::ranges::sort(group.members);
  group.index = group.index_of(tree_.rank());
  reported_.add_group(group);
  taken.added.push_back(std::move(group));
}

}  // namespace farandole::engine
