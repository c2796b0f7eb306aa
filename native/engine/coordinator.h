// Rank 0's part of agreement: counts who is ready for what, and decides. No threads, no I/O.
//
// Ranks report what is newly ready; when every member of a group has reported a request, it is compared (unless
// all reported the same known bit) and decided upon. Groups do not wait for each other, but one place decides for
// all of them: if every group ordered its own, two groups with two ranks in common could be run in opposite
// orders by those two, and neither would ever finish.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/catalog.h"
#include "engine/messages.h"

namespace farandole::engine {

class Coordinator {
 public:
  explicit Coordinator(int world_size);

  // Throws Error(kInternal) when the message makes no sense.
  void receive(int rank, const Ready& ready);
  // What can be decided now, in the order in which it came to be.
  std::vector<Decision> decide();

  // A request that some members have made and others not, for the stall inspector.
  struct Waiting {
    uint32_t group;
    std::string name;
    std::vector<int> missing;
  };
  std::vector<Waiting> waiting() const;

 private:
  // One name of one group, from the first report to the decision.
  struct Tally {
    std::vector<bool> reported;  // by member index
    size_t count = 0;
    std::map<int, Signature> in_full;  // of the members that did not report the known bit
  };
  struct GroupState {
    std::vector<int> members;
    Catalog catalog;
    std::unordered_set<std::string> seen_once;
    std::unordered_map<std::string, Tally> tallies;
    std::vector<std::string> complete;  // names whose tally is full

    int index_of(int rank) const;
  };

  void report(uint32_t group_id, GroupState& group, int rank, const std::string& name, const Signature* in_full);
  GroupState& group_of(uint32_t id, int rank);
  void settle(GroupState& group, const std::string& name, Decision& decision);
  uint32_t bit_for(GroupState& group, const std::string& name);
  // What becomes of the group table; a reason for refusing, or nothing.
  std::string add_group(const Signature& signature, uint32_t& new_id);
  std::string remove_group(uint32_t id);

  const int world_size_;
  std::map<uint32_t, GroupState> groups_;
  std::deque<uint32_t> free_ids_;
  uint32_t next_id_ = 1;
  std::deque<uint32_t> touched_;  // groups with complete names, in the order of the first one
  int leaving_ = -1;              // the first rank that wants to leave
  bool left_ = false;             // and the world has been told
  int finished_ = 0;              // ranks that have done everything up to that
};

}  // namespace farandole::engine
