#include "engine/agreement_core.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace farandole::engine {

using base::Code;
using base::Error;
using collective::Group;

AgreementCore::AgreementCore(int rank, const Group& world, bool waits_for_formed, Recorder& recorder)
    : rank_(rank), reported_(rank, world, recorder) {
  if (rank == 0) {
    coordinator_.emplace(static_cast<int>(world.size()), waits_for_formed);
  }
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
  const bool absent = std::ranges::find(decision.absent, rank_) != decision.absent.end();
  const auto take_if_mine = [&](const Decision::Agreed& agreed, uint32_t bit) {
    if (!takes_part(agreed.signature, rank_)) {
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
    if (std::ranges::find(refused.asked, rank_) != refused.asked.end()) {
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
  group.index = group.index_of(rank_);
  reported_.add_group(group);
  taken.added.push_back(std::move(group));
}

}  // namespace farandole::engine
