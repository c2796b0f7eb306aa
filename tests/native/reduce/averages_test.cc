// Averages of integers, which are divided without a division: every number of the small types, and of the others those
// where the next quotient begins.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "reduce/kernels.h"
#include "reduce/oracle.h"
#include "reduce/samples.h"

namespace farandole::reduce {
namespace {

std::vector<int64_t> divisors() {
  std::vector<int64_t> all;
  for (int64_t divisor = 2; divisor <= 70; ++divisor) {
    all.push_back(divisor);
  }
  for (int shift = 7; shift <= 62; ++shift) {
    const int64_t power = int64_t{1} << shift;
    all.insert(all.end(), {power - 1, power, power + 1, power + power / 3});
  }
  all.push_back(std::numeric_limits<int64_t>::max());
  return all;
}

template <typename T>
std::vector<T> every_number() {
  std::vector<T> all;
  constexpr int64_t kFirst{std::numeric_limits<T>::min()};
  for (int64_t number = kFirst; number <= std::numeric_limits<T>::max(); ++number) {
    all.push_back(static_cast<T>(number));
  }
  return all;
}

// Around multiples of the divisor and around powers of two, of both signs.
template <typename T>
std::vector<T> numbers_to_divide(int64_t divisor) {
  const auto wrapped = [](uint64_t bits) { return static_cast<T>(bits); };
  std::mt19937_64 random(static_cast<uint64_t>(divisor));
  std::vector<T> all;
  const auto add_around = [&](uint64_t number) {
    for (uint64_t near = number - 2; near != number + 3; ++near) {
      all.push_back(wrapped(near));
      all.push_back(wrapped(-near));
    }
  };
  for (size_t shift = 0; shift < 8 * sizeof(T); ++shift) {
    add_around(uint64_t{1} << shift);
  }
  for (int i = 0; i < 300; ++i) {
    const uint64_t number = random() >> random() % 64;
    add_around(number / static_cast<uint64_t>(divisor) * static_cast<uint64_t>(divisor));
    all.push_back(wrapped(number));
  }
  return all;
}

template <typename T>
void expect_averages(const std::vector<T>& numbers, const Scale& scale) {
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    std::vector<T> got(numbers.size());
    scale_to(oracle::dtype<T>(), numbers.data(), got.data(), got.size(), scale);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(identity_of(got[i]),
                identity_of(oracle::rounded<T>(oracle::scaled(oracle::accumulator(numbers[i]), scale))))
          << isa << ": element " << i << " / " << scale.divisor << " * " << scale.factor;
    }
  }
}

template <typename T>
class Averages : public ::testing::Test {};
using Integers = ::testing::Types<uint8_t, int8_t, int16_t, int32_t, int64_t>;
TYPED_TEST_SUITE(Averages, Integers, TypeNames);

TYPED_TEST(Averages, AreTheQuotientsTruncatedTowardZero) {
  std::vector<TypeParam> numbers;
  if constexpr (sizeof(TypeParam) <= 2) {
    numbers = every_number<TypeParam>();
  }
  for (const int64_t divisor : divisors()) {
    if constexpr (sizeof(TypeParam) > 2) {
      numbers = numbers_to_divide<TypeParam>(divisor);
    }
    expect_averages(numbers, {1.0, divisor});
    if (this->HasFatalFailure()) return;
  }
}

TYPED_TEST(Averages, AreScaledInFloat64WhereAFactorIsAskedForToo) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double factor : {0.1, -2.5, 1e300, -1e300, 1e-300, 0x1p62, infinity, nan, 0.0}) {
    for (const int64_t divisor : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{1} << 40}) {
      expect_averages(numbers_to_divide<TypeParam>(divisor), {factor, divisor});
      if (this->HasFatalFailure()) return;
    }
  }
}

TEST(AveragesOfBool, AreFalseUnlessDividedByOne) {
  std::vector<Boolean> values(100);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i].byte = static_cast<uint8_t>(3 * i);
  }
  for (const int64_t divisor : {1, 2, 3, 8}) {
    expect_averages(values, {divisor == 1 ? 2.5 : 1.0, divisor});
  }
}

}  // namespace
}  // namespace farandole::reduce
