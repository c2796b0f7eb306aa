#include "collective/reducescatter/parts.h"

#include <numeric>

#include "collective/scaled_copy.h"

namespace farandole::collective {

Parts::Parts(const ReducescatterJob& job)
    : job_(job), starts_(job.counts.size()), longest_(*std::ranges::max_element(job.counts)) {
  std::exclusive_scan(job.counts.begin(), job.counts.end(), starts_.begin(), size_t{0});
}

const std::byte* Parts::at(size_t k, size_t from) const noexcept {
  return static_cast<const std::byte*>(job_.input) + (starts_[k] + from) * reduce::size_of(job_.dtype);
}

size_t Parts::copy_in(size_t k, size_t from, size_t cell, reduce::Dtype as, std::byte* memory) const {
  const size_t count = length(k, from, cell);
  if (count > 0) {
    scaled_copy(job_.dtype, as, at(k, from), memory, count, job_.prescale);
  }
  return count;
}

}  // namespace farandole::collective
