// Rank 0's record of each member's progress in forming the backends that have to be formed: see backend/formation.h. No
// threads, no I/O.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace farandole::engine {

class FormationTally {
 public:
  // A group all of whose members have introduced themselves.
  struct Introduced {
    uint32_t group;
    std::vector<int> members;
    std::vector<base::Bytes> introductions;  // by index in the group
  };
  // A group of which it is known whether the backends can be used there.
  struct Settled {
    uint32_t group;
    std::string obstacle;  // why not; empty: they can
  };

  // `members` are the group's, in ascending order, and `rank` is one of them.
  void introduce(uint32_t group, const std::vector<int>& members, int rank, base::Bytes introduction);
  // A member has formed them, or has failed to.
  void hear(uint32_t group, const std::vector<int>& members, int rank, const std::string& error);
  // The group is gone.
  void remove(uint32_t group);

  // Each one once.
  std::vector<Introduced> take_introduced() { return std::exchange(introduced_, {}); }
  std::vector<Settled> take_settled();
  // Whether all members have introduced themselves, but the outcome is still open.
  bool is_forming(uint32_t group, size_t members) const;

 private:
  struct State {
    std::map<int, base::Bytes> introductions;  // by rank
    std::set<int> has_formed;                  // ranks
    std::string obstacle;                      // the first one
    bool is_settled = false;
  };

  std::map<uint32_t, State> groups_;
  std::vector<Introduced> introduced_;
  std::vector<Settled> settled_;
};

}  // namespace farandole::engine
