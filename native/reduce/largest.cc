// Magnitudes of float32 are in the order of their bits. A histogram of their upper bits says in which bin the smallest
// one that is wanted lies; only what is in that bin has to be ordered.
#include "reduce/largest.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <vector>

namespace farandole::reduce {
namespace {

constexpr unsigned kBinShift = 20;  // sign, exponent and three bits of the fraction: 2^11 bins of magnitudes
constexpr size_t kBins = size_t{1} << (31 - kBinShift);
// Neighbours often fall into one bin; counting them in turn in several tables keeps the additions apart.
constexpr size_t kTables = 4;

uint32_t magnitude(float value) noexcept { return std::bit_cast<uint32_t>(value) & 0x7fffffff; }

std::array<size_t, kBins> count_bins(const float* values, size_t count) {
  std::array<std::array<uint32_t, kBins>, kTables> tables{};
  size_t i = 0;
  for (; i + kTables <= count; i += kTables) {
    for (size_t table = 0; table < kTables; ++table) {
      ++tables[table][magnitude(values[i + table]) >> kBinShift];
    }
  }
  for (; i < count; ++i) {
    ++tables[0][magnitude(values[i]) >> kBinShift];
  }
  std::array<size_t, kBins> bins{};
  for (const auto& table : tables) {
    std::transform(bins.begin(), bins.end(), table.begin(), bins.begin(), std::plus<>());
  }
  return bins;
}

// The least magnitude that is wanted, and how many that have it are.
struct Border {
  uint32_t magnitude;
  size_t wanted;
};

Border find_border(const float* values, size_t count, size_t most) {
  const std::array<size_t, kBins> bins = count_bins(values, count);
  size_t above = 0;
  size_t bin = kBins - 1;
  while (above + bins[bin] < most) {
    above += bins[bin--];
  }
  std::vector<uint32_t> inside;
  inside.reserve(bins[bin]);
  for (size_t i = 0; i < count; ++i) {
    if (magnitude(values[i]) >> kBinShift == bin) {
      inside.push_back(magnitude(values[i]));
    }
  }
  const auto last = inside.begin() + static_cast<ptrdiff_t>(most - above - 1);
  std::nth_element(inside.begin(), last, inside.end(), std::greater<>());
  const uint32_t border = *last;
  const auto larger = std::count_if(inside.begin(), last, [&](uint32_t each) { return each > border; });
  return {border, most - above - static_cast<size_t>(larger)};
}

}  // namespace

void find_largest(const float* values, size_t count, size_t most, uint32_t* places) {
  if (most == 0) {
    return;
  }
  auto [border, wanted] = find_border(values, count, most);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t each = magnitude(values[i]);
    if (each > border || (each == border && wanted > 0)) {
      *places++ = static_cast<uint32_t>(i);
      wanted -= each == border ? 1 : 0;
    }
  }
}

}  // namespace farandole::reduce
