#include "engine/member_set.h"

namespace farandole::engine {
namespace {

// The bits of one word that a range has.
uint64_t mask_of(MemberSet::Range range, size_t word) noexcept {
  uint64_t mask = ~uint64_t{0};
  if (word == range.first / 64) {
    mask &= ~uint64_t{0} << (range.first % 64);
  }
  if (word == range.last / 64) {
    mask &= ~uint64_t{0} >> (63 - range.last % 64);
  }
  return mask;
}

}  // namespace

bool MemberSet::add(Range range) noexcept {
  for (size_t word = range.first / 64; word <= range.last / 64; ++word) {
    if ((words_[word] & mask_of(range, word)) != 0) {
      return false;
    }
  }
  for (size_t word = range.first / 64; word <= range.last / 64; ++word) {
    words_[word] |= mask_of(range, word);
  }
  return true;
}

}  // namespace farandole::engine
