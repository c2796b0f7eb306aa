// The input of a reducescatter as its algorithms see it: one part for each member, all cut into cells of the same
// length. In one round all work on the cells that begin `from` elements into each part; a part that is shorter than
// others ends with a shorter cell, or none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "collective/algorithm_table.h"
#include "collective/scaled_copy.h"

namespace farandole::collective {

class Parts {
 public:
  explicit Parts(const ReducescatterJob& job)
      : job_(job), starts_(job.counts.size()), longest_(*std::ranges::max_element(job.counts)) {
    std::exclusive_scan(job.counts.begin(), job.counts.end(), starts_.begin(), size_t{0});
  }

  size_t longest() const noexcept { return longest_; }
  // The length of the cell of part `k` at `from`, all in elements.
  size_t length(size_t k, size_t from, size_t cell) const noexcept {
    return std::min(cell, job_.counts[k] - std::min(from, job_.counts[k]));
  }
  // The place of that cell in the input.
  const std::byte* at(size_t k, size_t from) const noexcept {
    return static_cast<const std::byte*>(job_.input) + (starts_[k] + from) * reduce::size_of(job_.dtype);
  }
  // Copies that cell, prescaled, as elements of `as` (the job's dtype or its accumulator). Gives its length.
  size_t copy_in(size_t k, size_t from, size_t cell, reduce::Dtype as, std::byte* memory) const {
    const size_t count = length(k, from, cell);
    if (count > 0) {
      scaled_copy(job_.dtype, as, at(k, from), memory, count, job_.prescale);
    }
    return count;
  }

 private:
  const ReducescatterJob& job_;
  std::vector<size_t> starts_;
  size_t longest_;
};

}  // namespace farandole::collective
