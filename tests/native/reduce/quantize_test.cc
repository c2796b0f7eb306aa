// Quantizing: what comes back, what is lost, what is not finite; the same bits with every instruction set.
#include "reduce/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "reduce/kernels.h"
#include "reduce/largest.h"

namespace farandole::reduce {
namespace {

constexpr size_t kCounts[] = {0, 1, 2, 63, 64, 65, 255, 256, 257, 300, 511, 512, 1000, 5000};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Quantized {
  std::vector<std::byte> bytes;
  std::vector<float> lost;
  std::vector<float> back;
};

Quantized quantized(std::vector<float> values) {
  Quantized result;
  result.bytes.resize(quantized_bytes(values.size()));
  result.back.resize(values.size());
  result.lost = std::move(values);
  quantize(result.lost.data(), result.lost.size(), result.bytes.data());
  dequantize(result.bytes.data(), result.back.size(), result.back.data());
  return result;
}

std::vector<float> random_values(size_t count, float spread, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

float scale_at(const std::vector<float>& values, size_t element) {
  const size_t from = element / kQuantizedChunk * kQuantizedChunk;
  float most = 0;
  for (size_t i = from; i < std::min(values.size(), from + kQuantizedChunk); ++i) {
    most = std::max(most, std::abs(values[i]));
  }
  return most / 127;
}

class EveryIsa : public ::testing::TestWithParam<std::string_view> {
 protected:
  EveryIsa() { use_isa(GetParam()); }
  ~EveryIsa() override { use_isa(runnable_isas().front()); }
};

TEST_P(EveryIsa, ErrorIsAtMostHalfAScaleAndIsLeftInInput) {
  for (const size_t count : kCounts) {
    for (const float spread : {1e-20F, 1.0F, 1e30F}) {
      const std::vector<float> values = random_values(count, spread, 1);
      const Quantized result = quantized(values);
      for (size_t i = 0; i < count; ++i) {
        const float scale = scale_at(values, i);
        ASSERT_LE(std::abs(values[i] - result.back[i]), scale / 2 * 1.0001F) << i << " of " << count;
        ASSERT_NEAR(result.back[i] + result.lost[i], values[i], scale * 1e-5F) << i << " of " << count;
      }
    }
  }
}

TEST_P(EveryIsa, MultiplesOfTheScaleComeBackExactly) {
  std::vector<float> values(kQuantizedChunk);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = (static_cast<float>(i % 255) - 127) * 0.25F;
  }
  const Quantized result = quantized(values);
  EXPECT_EQ(result.back, values);
  EXPECT_EQ(result.lost, std::vector<float>(values.size(), 0));
}

TEST_P(EveryIsa, TiesGoToTheEvenCode) {
  // The scale is 1.
  const Quantized result = quantized({127, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, 126.5F});
  EXPECT_EQ(result.back, (std::vector<float>{127, 0, 2, 2, 0, -2, 126}));
}

TEST_P(EveryIsa, ChunksHaveSeparateScales) {
  std::vector<float> values = random_values(2 * kQuantizedChunk, 1e-6F, 2);
  values[0] = 1e6F;
  const Quantized result = quantized(values);
  EXPECT_EQ(result.back[0], 1e6F);
  EXPECT_EQ(result.back[1], 0);
  EXPECT_NE(result.back[kQuantizedChunk + 1], 0);
}

TEST_P(EveryIsa, NonFiniteElementBecomesNanAndDoesNotAffectOthers) {
  for (const size_t count : {size_t{3}, size_t{65}, size_t{256}, size_t{400}}) {
    for (const float odd : {kInfinity, -kInfinity, kNan, kTooLarge, std::numeric_limits<float>::max()}) {
      std::vector<float> values = random_values(count, 1, 3);
      const size_t place = count - 2;
      values[place] = 0;
      const Quantized without = quantized(values);
      values[place] = odd;
      const Quantized with = quantized(values);
      for (size_t i = 0; i < count; ++i) {
        if (i == place) {
          EXPECT_TRUE(std::isnan(with.back[i])) << odd;
          EXPECT_EQ(with.lost[i], 0) << odd;
        } else {
          EXPECT_EQ(with.back[i], without.back[i]) << i << " beside " << odd;
          EXPECT_EQ(with.lost[i], without.lost[i]) << i << " beside " << odd;
        }
      }
    }
  }
  const Quantized nothing_else = quantized({kNan, kInfinity});
  EXPECT_TRUE(std::isnan(nothing_else.back[0]) && std::isnan(nothing_else.back[1]));
}

TEST_P(EveryIsa, LargestAndSmallestNumbersAreQuantized) {
  const float large = std::nextafter(kTooLarge, 0.0F);
  EXPECT_NEAR(quantized({large, -large}).back[1] / -large, 1, 1e-6);
  const float small = kLeastMagnitude;
  EXPECT_NEAR(quantized({small, 0}).back[0] / small, 1, 1e-6);
  const float smaller = std::nextafter(kLeastMagnitude, 0.0F);
  const Quantized result = quantized({smaller, -smaller});
  EXPECT_EQ(result.back, (std::vector<float>{0, 0}));
  EXPECT_EQ(result.lost, (std::vector<float>{smaller, -smaller})) << "nothing was sent of it";
}

TEST_P(EveryIsa, AddingEqualsDecodingThenAdding) {
  for (const size_t count : kCounts) {
    std::vector<float> values = random_values(count, 1, 4);
    if (count > 300) {
      values[290] = kNan;
    }
    const Quantized result = quantized(values);
    std::vector<float> sum = random_values(count, 1, 5);
    const std::vector<float> before = sum;
    dequantize_add(result.bytes.data(), count, sum.data());
    for (size_t i = 0; i < count; ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(sum[i]));
      } else {
        ASSERT_EQ(sum[i], before[i] + result.back[i]) << i << " of " << count;
      }
    }
  }
}

TEST_P(EveryIsa, HasTheBitsOfTheBaseline) {
  for (const size_t count : kCounts) {
    std::vector<float> values = random_values(count, 1, 6);
    if (count > 600) {
      values[599] = kInfinity;
      std::fill_n(values.begin() + 256, 256, 1e-38F);
    }
    use_isa(GetParam());
    const Quantized here = quantized(values);
    use_isa("baseline");
    const Quantized there = quantized(values);
    EXPECT_EQ(here.bytes, there.bytes) << count;
    EXPECT_EQ(here.lost, there.lost) << count;
  }
}

INSTANTIATE_TEST_SUITE_P(Quantize, EveryIsa, ::testing::ValuesIn(runnable_isas().begin(), runnable_isas().end()),
                         [](const auto& info) { return std::string(info.param); });

std::vector<uint32_t> largest(const std::vector<float>& values, size_t most) {
  std::vector<uint32_t> places(most);
  find_largest(values.data(), values.size(), most, places.data());
  return places;
}

TEST(Largest, TakesByMagnitudeInOrderOfPlace) {
  EXPECT_EQ(largest({1, -5, 3, 0, 4}, 3), (std::vector<uint32_t>{1, 2, 4}));
  EXPECT_EQ(largest({1, -5, 3, 0, 4}, 5), (std::vector<uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_TRUE(largest({1, 2}, 0).empty());
}

TEST(Largest, FirstOfEqualMagnitudesAreTaken) {
  EXPECT_EQ(largest({2, -2, 2, 3, 2}, 3), (std::vector<uint32_t>{0, 1, 3}));
  EXPECT_EQ(largest({0, -0.0F, 0}, 2), (std::vector<uint32_t>{0, 1}));
}

TEST(Largest, NonFiniteElementsAreTakenFirst) {
  EXPECT_EQ(largest({1e38F, kNan, 1, -kInfinity}, 2), (std::vector<uint32_t>{1, 3}));
  EXPECT_EQ(largest({1e38F, kNan, 1, -kInfinity}, 1), (std::vector<uint32_t>{1}));
}

TEST(Largest, AgreesWithSorting) {
  for (const size_t count : {size_t{1}, size_t{7}, size_t{1000}, size_t{20'000}}) {
    for (const unsigned grain : {0U, 10U}) {  // with grain: many equal ones
      std::vector<float> values = random_values(count, 1, 7);
      if (grain > 0) {
        for (float& value : values) {
          value = std::round(value * static_cast<float>(grain)) / static_cast<float>(grain);
        }
      }
      for (const size_t most : {size_t{1}, count / 3, count / 100, count}) {
        std::vector<uint32_t> expected(count);
        for (size_t i = 0; i < count; ++i) {
          expected[i] = static_cast<uint32_t>(i);
        }
        std::stable_sort(expected.begin(), expected.end(),
                         [&](uint32_t a, uint32_t b) { return std::abs(values[a]) > std::abs(values[b]); });
        expected.resize(most);
        std::sort(expected.begin(), expected.end());
        ASSERT_EQ(largest(values, most), expected) << most << " of " << count;
      }
    }
  }
}

}  // namespace
}  // namespace farandole::reduce
