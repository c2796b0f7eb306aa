// What a rank with children, other than rank 0, makes of the reports of its subtree (agreement_tree.h): a request is
// passed on to the parent when the whole subtree has it, once, with the ranks that asked for it. No threads, no I/O.
//
// To hold something back only saves messages: rank 0 decides the same whenever it hears of it. So nothing is held for
// longer than `hold_ns`, and rank 0 learns who waits for whom. While a rank of the subtree has joined, nothing is: what
// others ask for goes on without that rank.
//
// It follows the decisions on their way down, to know groups and bits. Decisions are taken up here before any rank
// below hears of them, so what such a rank reports always refers to something known.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/agreement_tree.h"
#include "engine/messages.h"
#include "engine/response_cache.h"

namespace farandole::engine {

class SubtreeTally {
 public:
  // The usual `hold_ns`: longer than most workers come late, and shorter than a stall that is worth a warning.
  static constexpr int64_t kHoldNs = 200'000'000;

  SubtreeTally(const AgreementTree& tree, int64_t hold_ns);

  // From this rank or a child, when it came. Throws Error(kInternal) when it makes no sense.
  void add(const Report& report, int64_t now_ns);
  void follow(const Decision& decision);

  // What the parent is to hear now.
  std::vector<Report> take(int64_t now_ns);
  // When take() has something at the latest; 0: nothing is held back.
  int64_t due_ns() const noexcept { return held_ == 0 ? 0 : due_ns_; }

 private:
  struct Times {
    int64_t first_ns;  // when the first rank was ready
    int64_t last_ns;   // when the last one was
    int last_rank;     // which one that was
  };
  // Ranks that want the same under one name, of which the parent has not heard yet.
  struct Variant {
    std::optional<Signature> signature;  // none: what the bit stands for
    RankSet ranks;
    Times times;
    bool recurs = false;  // the name, as some of them say
  };
  // One name of one group, until the whole subtree has asked for it or it is decided.
  struct Tally {
    std::vector<Variant> variants;
    int waiting = 0;       // ranks in `variants`
    int passed = 0;        // ranks of which the parent has heard
    int64_t since_ns = 0;  // when the first of `waiting` came
  };
  struct Group {
    int members = 0;            // in the subtree
    ResponseCache cache;        // the same as the members'
    std::vector<Tally> by_bit;  // of names that have a bit
    std::unordered_map<std::string, Tally> by_name;
  };
  // What some ranks have asked for, and the parent has not.
  struct Asked {
    uint32_t group;
    uint32_t bit;  // or kNoBit
    const std::string& name;
  };
  // A report that is being made.
  struct Draft {
    RankSet ranks;
    Times times;           // the latest one's, but for the first time
    int64_t later_ns = 0;  // than the first request's last time, their sum
    int64_t requests = 1;
    int64_t base_ns = 0;  // the first request's last time
    Ready ready;
  };

  // `fresh` is the request if it was reported in full, or else null.
  void count(Group& group, const Asked& asked, const Ready::New* fresh, const Report& report, int64_t now_ns);
  void pass(const Asked& asked, Tally& tally);
  void pass_variant(const Asked& asked, Variant variant);
  Draft& draft_for(const RankSet& ranks, const Times& times);
  // Whatever is held back since then or longer.
  void pass_held(int64_t since_ns);
  // What is not a request that the whole subtree has to make.
  void pass_rest(const Report& report, int64_t now_ns);
  void follow_agreed(Group& group, const Decision::Agreed& agreed);
  void add_group(uint32_t id, const std::vector<int64_t>& members);
  void remove_group(uint32_t id);
  // It is decided: ranks that ask for it again are counted anew.
  static void forget_passed(Group& group, const std::string& name);
  Group& group_of(uint32_t id, const Report& report);

  const int64_t hold_ns_;
  std::vector<bool> is_below_;  // by rank: it is in the subtree
  int size_ = 0;                // of the subtree
  std::map<uint32_t, Group> groups_;
  std::vector<Draft> requests_;  // for the parent
  std::vector<Draft> rest_;      // after those
  RankSet finished_;
  int joined_ = 0;      // ranks that have
  int held_ = 0;        // tallies with ranks that wait
  int64_t due_ns_ = 0;  // when the first of them may be due
};

}  // namespace farandole::engine
