#include "collective/scaled_copy.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace farandole::collective {
namespace {

// Scaled and converted in pieces of this many elements, which stay in the first-level cache.
constexpr size_t kBlock = 2048;

}  // namespace

void scaled_copy(reduce::Dtype from_type, reduce::Dtype to_type, const std::byte* from, std::byte* to, size_t count,
                 const reduce::Scale& scale, reduce::Stores stores) {
  if (from_type == to_type) {
    reduce::scale_to(from_type, from, to, count, scale, stores);
    return;
  }
  if (scale.is_one()) {
    reduce::convert(from_type, to_type, from, to, count);
    return;
  }
  alignas(64) std::array<std::byte, kBlock * 8> block;
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t length = std::min(kBlock, count - at);
    reduce::scale_to(from_type, from + at * reduce::size_of(from_type), block.data(), length, scale);
    reduce::convert(from_type, to_type, block.data(), to + at * reduce::size_of(to_type), length);
  }
}

}  // namespace farandole::collective
