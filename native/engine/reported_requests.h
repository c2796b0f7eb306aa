// What this rank has reported and what it waits for: for each group that it is a member of, the response cache and the
// requests that rank 0 knows of. Here a request becomes a bit, and an agreed entry a request again.
//
// Threads: for the thread with the progress lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "collective/group.h"
#include "engine/messages.h"
#include "engine/pending.h"
#include "engine/recorder.h"
#include "engine/response_cache.h"

namespace farandole::engine {

class ReportedRequests {
 public:
  ReportedRequests(int rank, const collective::Group& world, Recorder& recorder);

  // --- groups; null when this rank is not a member
  const collective::Group* group(uint32_t id) const;
  const ResponseCache* cache(uint32_t id) const;
  void add_group(const collective::Group& group);
  void remove_group(uint32_t id) { memberships_.erase(id); }
  void put(uint32_t group, const Decision::Agreed& agreed) { memberships_.at(group).cache.put(agreed); }

  // --- on the way to rank 0
  // The bit that stands for a request now, or kNoBit.
  uint32_t bit_of(const Request& request) const;
  // The request is waited for from now on; what is to be said about it is added to `ready`.
  void add(std::unique_ptr<Pending> pending, Ready& ready);
  // The same for one that others hear of by its bit, in whichever way.
  void add_by_bit(std::unique_ptr<Pending> pending, uint32_t bit);

  // --- on the way back
  // What one rank has reported as a bit, another one may have reported in full, and then the decision is in full.
  // Throws Error(kInternal) when this rank has never asked for it.
  std::unique_ptr<Pending> take(uint32_t group, const std::string& name, uint32_t bit);
  std::unique_ptr<Pending> take_join();
  // What this rank, which has joined, runs so that the others can go on: no input, no output, no completion.
  static std::unique_ptr<Pending> absent_part(uint32_t group, const Decision::Agreed& agreed);
  // All that is waited for, when the world is over.
  void take_all(std::vector<std::unique_ptr<Pending>>& into);

 private:
  struct Membership {
    collective::Group group;
    ResponseCache cache;
    // What rank 0 has been told of: in full, by name, and as a bit, by that.
    std::unordered_map<std::string, std::unique_ptr<Pending>> in_full;
    std::vector<std::unique_ptr<Pending>> by_bit;
    std::vector<uint32_t> name_numbers;  // in events, by bit
  };

  void add_in_full(Pending& pending, Ready& ready);

  const int rank_;
  Recorder& recorder_;
  std::map<uint32_t, Membership> memberships_;
  std::unique_ptr<Pending> join_;
};

}  // namespace farandole::engine
