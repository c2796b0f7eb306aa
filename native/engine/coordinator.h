// Rank 0's part of agreement: counts which ranks are ready for what, and decides. No threads, no I/O.
//
// Ranks report what is newly ready; when every member of a group has reported a request, it is compared (unless
// all reported the same known bit) and decided upon. Groups do not wait for each other, but one place decides for
// all of them: if every group ordered its own, two groups with two ranks in common could be run in opposite
// orders by those two, and neither would ever finish.
//
// A rank that has joined is not waited for. An allreduce for which only such ranks are missing goes on without them:
// they are absent from it, which the decision says, and run it without data. Anything else for which such a rank is
// missing fails on the ranks that asked for it.
//
// It has more methods than most classes: one for each way in which a request can come to its decision, all of which
// work on the one table of groups.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/formation_tally.h"
#include "engine/member_set.h"
#include "engine/messages.h"
#include "engine/response_cache.h"

namespace farandole::engine {

class Coordinator {
 public:
  // `waits_for_formed`: what is in device memory is not decided upon while its group forms a backend for it.
  explicit Coordinator(int world_size, bool waits_for_formed = false);

  // Told of every request in a message.
  using Heard = std::function<void(int rank, uint32_t group, const std::string& name, const Signature& signature)>;
  // `now_ns` is when the message came, by the clock of rank 0. Throws Error(kInternal) when it makes no sense.
  void receive(const Report& report, int64_t now_ns = 0, const Heard& heard = nullptr);
  // The same of one rank.
  void receive(int rank, const Ready& ready, int64_t now_ns = 0, const Heard& heard = nullptr);
  // Returns the decisions that are possible now, in the order in which they became so.
  std::vector<Decision> decide(int64_t now_ns = 0);

  // Who has come how far in forming the backends that have to be formed.
  FormationTally& formations() noexcept { return formations_; }

  // A request that some members have made and others not, for the stall inspector.
  struct Waiting {
    uint32_t group;
    std::string name;
    Kind kind;
    int64_t since_ns;  // when the first one was ready
    std::vector<int> missing;
  };
  std::vector<Waiting> waiting() const;
  bool something_waits() const noexcept { return open_tallies_ > 0; }

 private:
  // When the ranks of one report were ready: the last one then, and the others, as far as anybody knows, at first.
  struct Times {
    int64_t first_ns;
    int64_t last_ns;
    int last_rank;

    int64_t of(int rank) const noexcept { return rank == last_rank ? last_ns : first_ns; }
  };
  // How a rank has reported a request. kRecurring: in full, and its name will come again.
  enum class How : uint8_t { kAsBit, kInFull, kRecurring };
  // The ranks of one report, all of them members of a group.
  struct Reporters {
    const RankSet& ranks;
    std::vector<MemberSet::Range> indexes;
    Times times;
  };
  // One name of one group, from the first report until no rank is waited for.
  struct Tally {
    MemberSet reported;
    std::vector<bool> awaited;  // by member index: which ones must report; empty: all
    size_t count = 0;           // of `reported`
    size_t needed = 0;
    std::map<int, Signature> in_full;  // of the members that did not report the known bit
    bool recurs = false;               // some of these have said so
    std::string refusal;               // why it cannot run, if that is known already
    int64_t since_ns = 0;              // when the first one was ready
    int64_t last_ready_ns = 0;         // when the last one was
    int last_rank = -1;                // which one that was

    bool awaits(size_t index) const { return !reported.contains(index) && (awaited.empty() || awaited[index]); }
  };
  using Tallies = std::unordered_map<std::string, Tally>;
  // A name for which no rank is waited for any more: one that all have reported as this bit, or one with its tally.
  struct Complete {
    uint32_t bit;
    int64_t last_ready_ns;
    int last_rank;
    Tallies::node_type tally{};
  };
  struct GroupState {
    std::vector<int> members;
    ResponseCache cache;
    std::unordered_set<std::string> seen_once;
    Tallies tallies;
    // The tallies of names that have been reported as bits only, by bit; that of any other name is in `tallies`. No
    // rank has joined while there are any.
    std::vector<Tally> bit_tallies;
    std::vector<Complete> complete;   // no rank is waited for any more
    std::vector<Complete> held_back;  // while a backend for device memory is being formed

    int index_of(int rank) const;
    std::vector<int> awaited_by(const Tally& tally) const;
  };
  // A decision that is being made, and what its times are made of.
  struct Draft {
    Decision decision;
    int64_t settling_ns = 0;
    int64_t requests = 0;
    int64_t last_ready_ns = INT64_MIN;
  };

  void receive_of(const RankSet& ranks, const Ready& ready, const Times& times, const Heard& heard);
  void receive_known(const Ready::Known& known, const RankSet& ranks, const Times& times, const Heard& heard);
  void receive_fresh(const Ready::New& fresh, int rank, int64_t ready_ns, const Heard& heard);
  // Throws Error(kInternal) unless all of them are members.
  static Reporters reporters(const GroupState& group, uint32_t id, const RankSet& ranks, const Times& times);
  void report(uint32_t group_id, GroupState& group, int rank, const std::string& name, const Signature& signature,
              How how, int64_t ready_ns);
  // The same for a bit, of all reporters at once, if no rank can have reported its name otherwise.
  bool report_bit(uint32_t group_id, GroupState& group, const Reporters& reporters, uint32_t bit);
  // Adjusts the times and the count of a tally: so many more members are ready, and since when.
  static void note(Tally& tally, int members, const Times& times);
  // Gives the name a tally of its own, whichever ranks have reported it as a bit.
  void spell_out(GroupState& group, uint32_t bit);
  void spell_out_all(GroupState& group);
  // Which members must report a request of this signature, besides those of which it is known.
  void await(const GroupState& group, Tally& tally, int rank, const Signature& signature);
  void complete(uint32_t group_id, GroupState& group, const std::string& name);
  static std::string name_of(const GroupState& group, const Complete& complete);
  void add_complete(uint32_t group_id, GroupState& group, Complete complete);
  bool is_held_back(uint32_t group_id, const GroupState& group, const Complete& complete) const;
  void receive_formations(int rank, const Ready& ready);
  void join(int rank);
  // Decides whether a request still waits, now that ranks have joined.
  void weigh(uint32_t group_id, GroupState& group, const std::string& name);
  Kind kind_of(const GroupState& group, const std::string& name, const Tally& tally) const;
  GroupState& group_of(uint32_t id, int rank);
  std::vector<Decision> decide_group(uint32_t id, GroupState& group, int64_t now_ns);
  void settle_in_full(GroupState& group, const std::string& name, const Tally& tally, Decision& decision);
  uint32_t bit_for(GroupState& group, const std::string& name, bool recurs);
  // Changes the group table; returns the reason for a refusal, or nothing.
  std::string add_group(const Signature& signature, uint32_t& new_id);
  std::string remove_group(uint32_t id);

  const int world_size_;
  const bool waits_for_formed_;
  std::map<uint32_t, GroupState> groups_;
  std::deque<uint32_t> free_ids_;
  uint32_t next_id_ = 1;
  std::vector<uint32_t> touched_;  // groups with complete names, in the order of the first one
  FormationTally formations_;
  size_t open_tallies_ = 0;
  std::vector<bool> joined_;  // by rank
  int joined_count_ = 0;
  int last_joined_ = -1;
  int leaving_ = -1;   // the first rank that wants to leave
  bool left_ = false;  // and the world has been told
  int finished_ = 0;   // ranks that have done everything up to that
};

}  // namespace farandole::engine
