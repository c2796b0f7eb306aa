// Which members of a group have done something, by their index in the group: a bit for each, set for a range at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace farandole::engine {

class MemberSet {
 public:
  struct Range {
    size_t first;
    size_t last;  // included
  };

  // Empties it, for a group of this size.
  void reset(size_t members) { words_.assign((members + 63) / 64, 0); }
  bool contains(size_t index) const noexcept { return (words_[index / 64] >> (index % 64) & 1) != 0; }
  // Returns false, and changes nothing, if some members of the range are in it already.
  bool add(Range range) noexcept;

 private:
  std::vector<uint64_t> words_;
};

}  // namespace farandole::engine
