// The state of agreement in one world. On every rank: which requests are waited for, in which order decisions are
// obeyed and what they mean for this rank's requests. On rank 0 also the decisions (see coordinator.h), and on other
// ranks with children the requests for which their subtree is ready (see subtree_tally.h). No threads, no I/O:
// AgreementClient drives it (agreement_client.h), a simulation drives thousands.
//
// Guarantees: decisions are obeyed in the order of their numbers, each once. A request that is agreed on and neither
// taken nor refused is still in reported().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/agreement_tree.h"
#include "engine/coordinator.h"
#include "engine/messages.h"
#include "engine/pending.h"
#include "engine/recorder.h"
#include "engine/reported_requests.h"
#include "engine/subtree_tally.h"

namespace farandole::engine {

class AgreementCore {
 public:
  // `waits_for_formed` as in Coordinator, `hold_ns` as in SubtreeTally. The recorder outlives it.
  AgreementCore(AgreementTree tree, const collective::Group& world, bool waits_for_formed, Recorder& recorder,
                int64_t hold_ns = SubtreeTally::kHoldNs);

  const AgreementTree& tree() const noexcept { return tree_; }
  ReportedRequests& reported() noexcept { return reported_; }
  const ReportedRequests& reported() const noexcept { return reported_; }
  const collective::Group* group(uint32_t id) const { return reported_.group(id); }
  // Rank 0 only; null on others.
  Coordinator* coordinator() noexcept { return coordinator_ ? &*coordinator_ : nullptr; }
  // Other ranks with children only; null elsewhere.
  SubtreeTally* subtree() noexcept { return subtree_ ? &*subtree_ : nullptr; }
  const SubtreeTally* subtree() const noexcept { return subtree_ ? &*subtree_ : nullptr; }

  // Decodes what a child has sent. Throws Error(kInternal), with the child's rank, if it is malformed.
  std::vector<Report> read(int child, std::span<const std::byte> bytes) const;
  // Returns the report of this rank itself.
  Report own_report(Ready ready) const;
  // Returns the children that are to be told of a decision, before this rank obeys it. Throws Error(kInternal) if it is
  // malformed.
  std::vector<int> next_hops(const Decision& decision) const;

  // The number of the next decision that is obeyed.
  uint32_t next_number() const noexcept { return decisions_ + 1; }
  // This decision is obeyed now. Throws Error(kInternal) when another one comes before it.
  void advance(const Decision& decision);

  // The consequences of a decision to run for this rank.
  struct Taken {
    struct Refused {
      std::unique_ptr<Pending> pending;
      std::string reason;
    };
    std::vector<Runnable> runnables;
    std::vector<Refused> refused;
    std::vector<collective::Group> added;  // this rank may not be a member
    std::vector<uint32_t> removed;
    bool joined = false;  // all ranks have: this one's join is over
  };
  // Requires that this rank is a member of the decision's group. When it throws Error(kInternal), what was taken
  // before is in `taken`.
  void take(const Decision& decision, Taken& taken);

 private:
  void require_in_world(const RankSet& ranks, int from) const;
  // `bit` is the one that the decision names it by, if it does.
  void take_agreed(uint32_t group, const Decision::Agreed& agreed, uint32_t bit, Taken& taken);
  void add_group(const Decision::Agreed& agreed, Taken& taken);

  const AgreementTree tree_;
  ReportedRequests reported_;
  std::optional<Coordinator> coordinator_;
  std::optional<SubtreeTally> subtree_;
  uint32_t decisions_ = 0;  // the number of the last one
};

}  // namespace farandole::engine
