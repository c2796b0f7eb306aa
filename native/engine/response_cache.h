// The response cache: the requests of one group that have a bit, by which they are reported and decided on. All members
// of the group and rank 0 hold the same cache, because all change it by the same decisions in the same order.
//
// A name gets its bit when it is agreed on for the second time, so names that come once do not fill the cache; a name
// of which it is known that it recurs gets it at once. Nothing is ever removed: when the cache is full, new names are
// still compared in full.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/messages.h"

namespace farandole::engine {

inline constexpr uint32_t kResponseCacheCapacity = 1 << 16;

class ResponseCache {
 public:
  // The bit that stands for exactly this request of the member with this index, or kNoBit.
  uint32_t find(const std::string& name, const Signature& signature, int member_index) const;
  // The bit of the name, whatever its signature, or kNoBit.
  uint32_t find_name(const std::string& name) const;
  const Decision::Agreed& at(uint32_t bit) const { return entries_.at(bit); }
  uint32_t size() const noexcept { return static_cast<uint32_t>(entries_.size()); }
  // Sets what `agreed.bit` stands for. The bit is at most size().
  void put(const Decision::Agreed& agreed);

 private:
  std::unordered_map<std::string, uint32_t> bits_;
  std::vector<Decision::Agreed> entries_;
};

// The part of a signature that all members have in common.
Signature common_part(Signature signature);
// Returns the signature that the member of this index sent, from what was agreed; for an alltoall without its rows,
// which no other rank knows.
Signature own_part(const Decision::Agreed& agreed, int member_index);

}  // namespace farandole::engine
