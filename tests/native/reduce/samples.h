// What the tests of kernels have in common: the variants, the types, numbers to compute with, and how results compare.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

#include "reduce/kernels.h"
#include "reduce/oracle.h"

namespace farandole::reduce {

using oracle::Bfloat16;
using oracle::Boolean;
using oracle::Float16;

struct TypeNames {
  template <typename T>
  static std::string GetName(int) {
    return name_of(oracle::dtype<T>());
  }
};
using AllTypes =
    ::testing::Types<uint8_t, int8_t, int16_t, int32_t, int64_t, Float16, Bfloat16, float, double, Boolean>;

// Goes back to the variant that was active before.
class UsedIsa {
 public:
  explicit UsedIsa(std::string_view name) : before_(active_isa()) { use_isa(name); }
  UsedIsa(const UsedIsa&) = delete;
  UsedIsa& operator=(const UsedIsa&) = delete;
  ~UsedIsa() { use_isa(before_); }

 private:
  std::string_view before_;
};

// The bits of a number; all NaNs are one, for which of several NaNs comes out of a sum is not promised.
template <typename T>
uint64_t identity_of(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  if constexpr (std::is_floating_point_v<oracle::Accumulator<T>>) {
    return std::isnan(oracle::accumulator(value)) ? ~uint64_t{0} : bits;
  }
  return bits;
}

template <typename T>
T random_element(std::mt19937_64& random) {
  T value;
  const uint64_t bits = random();
  if constexpr (std::is_floating_point_v<oracle::Accumulator<T>>) {
    // Of eight, five are numbers as gradients are, and three are any bits: subnormal, infinite, NaN.
    if (bits % 8 < 5) {
      return oracle::rounded<T>(
          static_cast<oracle::Accumulator<T>>(static_cast<int64_t>(bits >> 20 & 0xffff) - 0x8000) / 1024);
    }
  }
  if constexpr (std::is_same_v<T, Boolean>) {
    return {static_cast<uint8_t>(bits % 2 ? 0 : bits >> 8)};
  }
  const uint64_t high = bits >> 3;
  std::memcpy(&value, &high, sizeof(value));
  return value;
}

}  // namespace farandole::reduce
