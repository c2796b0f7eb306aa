// The names in flight in one world, and the requests that wait for one of them.
//
// A name stands for one request at a time. A request whose name is in flight, and which was submitted "in turn", waits
// here until the one before it is agreed on or refused: other ranks do not hear of it before. What it would wait for
// is the same on all ranks, because requests of one name are agreed on in the order in which each rank submits them.
//
// A join, and the removal of a process set, speak of all that this rank has asked for before. So they wait until
// nothing that came before them waits for its name any more. What comes after them, from other threads, does not
// matter: there may always be something.
//
// Threads: for the thread with the progress lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/pending.h"

namespace farandole::engine {

class NameQueue {
 public:
  // Takes what was submitted, in its order, and gives what may go on to agreement now: with it, what waited and need
  // not wait any more. The rest stays.
  std::vector<std::unique_ptr<Pending>> admit(std::vector<std::unique_ptr<Pending>> submitted);
  // Whether something that waited may go on.
  bool has_next() const noexcept { return !next_.empty(); }
  // A request that admit() gave is agreed on or refused.
  void settle(const Pending& pending);
  // Whether a request of this name has been submitted and is not settled.
  bool holds(uint32_t group, std::string_view name) const { return names_.contains({group, name}); }
  // Gives all that waits, and forgets the names, when the world is over.
  void take_all(std::vector<std::unique_ptr<Pending>>& into);

 private:
  struct Key {
    uint32_t group = 0;
    std::string_view name;  // of the request that holds it
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const noexcept {
      return std::hash<std::string_view>{}(key.name) + size_t{key.group} * 0x9E3779B97F4A7C15U;
    }
  };
  struct Waiting {
    uint64_t number;  // of its arrival
    std::unique_ptr<Pending> pending;
  };
  // A request that speaks of all before it.
  struct Last {
    uint64_t number;
    size_t before;  // how many of these wait
    std::unique_ptr<Pending> pending;
  };

  static Key key_of(const Pending& pending) noexcept { return {pending.request.group, pending.request.name}; }
  // Null when it waits now.
  std::unique_ptr<Pending> begin(std::unique_ptr<Pending> pending);

  void release_last(uint64_t number);

  std::unordered_map<Key, std::vector<Waiting>, KeyHash> names_;  // oldest first
  uint64_t arrivals_ = 0;                                         // of what had to wait
  size_t waiting_ = 0;                                            // in names_, over all names
  std::vector<Last> last_;                                        // oldest first
  std::vector<std::unique_ptr<Pending>> next_;                    // may go on
};

}  // namespace farandole::engine
