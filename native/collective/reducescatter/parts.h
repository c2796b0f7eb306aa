// The input of a reducescatter as its algorithms see it: one part for each member, all cut into cells of the same
// length. In one round all work on the cells that begin `from` elements into each part; a part that is shorter than
// others ends with a shorter cell, or none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "collective/algorithm_table.h"

namespace farandole::collective {

class Parts {
 public:
  explicit Parts(const ReducescatterJob& job);

  size_t longest() const noexcept { return longest_; }
  // The length of the cell of part `k` at `from`, all in elements.
  size_t length(size_t k, size_t from, size_t cell) const noexcept {
    return std::min(cell, job_.counts[k] - std::min(from, job_.counts[k]));
  }
  // The place of that cell in the input.
  const std::byte* at(size_t k, size_t from) const noexcept;
  // Copies that cell, prescaled, as elements of `as` (the job's dtype or its accumulator). Gives its length.
  size_t copy_in(size_t k, size_t from, size_t cell, reduce::Dtype as, std::byte* memory) const;

 private:
  const ReducescatterJob& job_;
  std::vector<size_t> starts_;
  size_t longest_;
};

}  // namespace farandole::collective
