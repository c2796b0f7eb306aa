// Every variant of the kernels that this processor runs, against the oracle, bit by bit.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "reduce/kernels.h"
#include "reduce/oracle.h"
#include "reduce/samples.h"

namespace farandole::reduce {
namespace {

using oracle::Bfloat16;
using oracle::Boolean;
using oracle::Float16;

constexpr Op kOps[] = {Op::kSum, Op::kMin, Op::kMax, Op::kProduct};
constexpr size_t kCounts[] = {0, 1, 7, 8, 9, 31, 1023, 4097};
constexpr size_t kInputCounts[] = {1, 2, 3, 4, 8};
const Scale kScales[] = {{1.0, 1}, {0.1, 1}, {1.0, 7}, {1.0, 8}, {-2.5, 3}};

template <typename T>
std::vector<std::vector<T>> random_inputs(size_t inputs, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<T>> all(inputs);
  for (auto& input : all) {
    // One more: the kernels see the elements from the second on, which are aligned to the element only.
    input.resize(count + 1);
    for (T& element : input) {
      element = random_element<T>(random);
    }
  }
  return all;
}

template <typename T>
T expected_at(const std::vector<std::vector<T>>& inputs, size_t i, Op op, const Scale& scale) {
  if (inputs.size() == 1 && scale.is_one()) {
    return inputs[0][i];
  }
  auto value = oracle::accumulator(inputs[0][i]);
  for (size_t k = 1; k < inputs.size(); ++k) {
    value = oracle::combined(op, value, oracle::accumulator(inputs[k][i]));
  }
  return oracle::rounded<T>(scale.is_one() ? value : oracle::scaled(value, scale));
}

template <typename T>
void expect_same(const std::vector<T>& got, const std::vector<T>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(identity_of(got[i]), identity_of(expected[i])) << what << ", element " << i << " of " << got.size();
  }
}

enum class Place { kApart, kFirst, kLast, kAll };

// Runs one reduction with two outputs, or one for each input, and compares all of them with the oracle.
template <typename T>
void check(Op op, size_t input_count, size_t count, const Scale& scale, Place place) {
  const auto original = random_inputs<T>(input_count, count, input_count * 1'000'003 + count);
  auto inputs = original;
  std::vector<std::vector<T>> fresh(2, std::vector<T>(count + 1, original[0][0]));
  std::vector<std::vector<T>*> written;
  switch (place) {
    case Place::kApart:
      written = {&fresh[0], &fresh[1]};
      break;
    case Place::kFirst:
      written = {&inputs.front(), &fresh[0]};
      break;
    case Place::kLast:
      written = {&fresh[0], &inputs.back()};
      break;
    case Place::kAll:
      for (auto& input : inputs) {
        written.push_back(&input);
      }
  }
  std::vector<const void*> from;
  std::vector<void*> to;
  for (auto& input : inputs) {
    from.push_back(input.data() + 1);
  }
  for (auto* output : written) {
    to.push_back(output->data() + 1);
  }

  reduce_to(oracle::dtype<T>(), op, from, to, count, scale);

  const std::string what = std::string(active_isa()) + " " + name_of(oracle::dtype<T>()) + " " + name_of(op) + " of " +
                           std::to_string(input_count) + ", scale " + std::to_string(scale.factor) + "/" +
                           std::to_string(scale.divisor) + ", place " + std::to_string(static_cast<int>(place));
  for (auto* output : written) {
    std::vector<T> expected(count + 1);
    expected[0] = (*output)[0];
    for (size_t i = 1; i <= count; ++i) {
      expected[i] = expected_at(original, i, op, scale);
    }
    expect_same(*output, expected, what);
  }
  // Memory that is not an output is only read.
  for (size_t k = 0; k < input_count; ++k) {
    if (std::find(written.begin(), written.end(), &inputs[k]) == written.end()) {
      expect_same(inputs[k], original[k], what + ", input");
    }
  }
}

template <typename T>
class Kernels : public ::testing::Test {};

TYPED_TEST_SUITE(Kernels, AllTypes, TypeNames);

TYPED_TEST(Kernels, ReduceAsTheOracleOnEveryVariant) {
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    for (const Op op : kOps) {
      for (const size_t inputs : kInputCounts) {
        for (const size_t count : kCounts) {
          for (const Place place : {Place::kApart, Place::kFirst, Place::kLast, Place::kAll}) {
            check<TypeParam>(op, inputs, count, {}, place);
            if (this->HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TYPED_TEST(Kernels, ScaleAsTheOracleOnEveryVariant) {
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    for (const Scale& scale : kScales) {
      for (const size_t inputs : kInputCounts) {
        for (const size_t count : kCounts) {
          for (const Place place : {Place::kApart, Place::kAll}) {
            check<TypeParam>(Op::kSum, inputs, count, scale, place);
            if (this->HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TYPED_TEST(Kernels, AccumulateIsAReductionOfTwo) {
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    for (const Op op : kOps) {
      for (const size_t count : kCounts) {
        const auto inputs = random_inputs<TypeParam>(2, count, count);
        auto got = inputs[0];
        accumulate(oracle::dtype<TypeParam>(), op, got.data(), inputs[1].data(), got.size());
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(identity_of(got[i]), identity_of(expected_at(inputs, i, op, {}))) << isa << " " << name_of(op);
        }
      }
    }
  }
}

TYPED_TEST(Kernels, ScaleToScalesApartAndInPlace) {
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    for (const Scale& scale : kScales) {
      for (const size_t count : kCounts) {
        const auto inputs = random_inputs<TypeParam>(1, count, count);
        auto in_place = inputs[0];
        std::vector<TypeParam> apart(in_place.size());
        scale_to(oracle::dtype<TypeParam>(), in_place.data(), apart.data(), apart.size(), scale);
        expect_same(in_place, inputs[0], "source");
        scale_to(oracle::dtype<TypeParam>(), in_place.data(), in_place.data(), in_place.size(), scale);
        for (size_t i = 0; i < apart.size(); ++i) {
          ASSERT_EQ(identity_of(apart[i]), identity_of(expected_at(inputs, i, Op::kSum, scale))) << isa;
          ASSERT_EQ(identity_of(in_place[i]), identity_of(apart[i])) << isa;
        }
      }
    }
  }
}

// This holds for signalling NaNs and for bytes like 0xaa in a bool, too.
TYPED_TEST(Kernels, OneInputWithoutAScaleIsCopiedBitByBit) {
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    std::mt19937_64 random(1);
    std::vector<unsigned char> source(1003 * sizeof(TypeParam));
    for (auto& byte : source) {
      byte = static_cast<unsigned char>(random());
    }
    std::vector<unsigned char> first(source.size());
    std::vector<unsigned char> second(source.size());
    const void* input = source.data();
    void* const outputs[] = {first.data(), second.data()};
    reduce_to(oracle::dtype<TypeParam>(), Op::kMin, {&input, 1}, outputs, 1003, {});
    EXPECT_EQ(first, source);
    EXPECT_EQ(second, source);
  }
}

TYPED_TEST(Kernels, TheIdentityLeavesEveryOperandAsItIs) {
  std::mt19937_64 random(7);
  constexpr Dtype kDtype = oracle::dtype<TypeParam>();
  std::vector<TypeParam> values(1023);
  for (TypeParam& value : values) {
    value = random_element<TypeParam>(random);
  }
  for (const Op op : kOps) {
    std::vector<TypeParam> identities(values.size());
    fill_identity(kDtype, op, identities.data(), identities.size());
    for (const bool first : {true, false}) {
      const void* inputs[] = {first ? identities.data() : values.data(), first ? values.data() : identities.data()};
      std::vector<TypeParam> result(values.size());
      void* const output = result.data();
      reduce_to(kDtype, op, inputs, {&output, 1}, values.size(), {});
      for (size_t i = 0; i < values.size(); ++i) {
        const auto expected = oracle::accumulator(values[i]);
        const auto got = oracle::accumulator(result[i]);
        // A sum with 0 turns -0 into 0; a NaN is not even equal to itself.
        ASSERT_TRUE(got == expected || (got != got && expected != expected)) << name_of(op) << " at " << i;
      }
    }
  }
}

TYPED_TEST(Kernels, NothingToDoTouchesNothing) {
  TypeParam element{};
  const void* input = &element;
  reduce_to(oracle::dtype<TypeParam>(), Op::kSum, {&input, 1}, {}, 1, {});
  const void* nowhere = nullptr;
  void* output = nullptr;
  reduce_to(oracle::dtype<TypeParam>(), Op::kSum, {&nowhere, 1}, {&output, 1}, 0, {2.0, 3});
  scale_to(oracle::dtype<TypeParam>(), nullptr, nullptr, 0, {2.0, 3});
  accumulate(oracle::dtype<TypeParam>(), Op::kMax, nullptr, nullptr, 0);
  convert(oracle::dtype<TypeParam>(), oracle::dtype<TypeParam>(), nullptr, nullptr, 0);
  convert(oracle::dtype<TypeParam>(), accumulator_of(oracle::dtype<TypeParam>()), nullptr, nullptr, 0);
}

template <typename T>
T reduced(Op op, const std::vector<T>& values, const Scale& scale = {}) {
  std::vector<const void*> inputs;
  for (const T& value : values) {
    inputs.push_back(&value);
  }
  T result{};
  void* output = &result;
  reduce_to(oracle::dtype<T>(), op, inputs, {&output, 1}, 1, scale);
  return result;
}

TEST(Meaning, AverageOfEqualValuesIsThatValue) {
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    for (int64_t size = 1; size <= 100; ++size) {
      const auto n = static_cast<size_t>(size);
      EXPECT_EQ(reduced(Op::kSum, std::vector<int32_t>(n, 7), {1.0, size}), 7);
      EXPECT_EQ(reduced(Op::kSum, std::vector<int64_t>(n, -1), {1.0, size}), -1);
      EXPECT_EQ(reduced(Op::kSum, std::vector<float>(n, 3.0f), {1.0, size}), 3.0f);
      EXPECT_EQ(reduced(Op::kSum, std::vector<double>(n, 1.0), {1.0, size}), 1.0);
    }
  }
}

TEST(Meaning, IntegersAreTruncatedTowardZero) {
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    EXPECT_EQ(reduced(Op::kSum, std::vector<int32_t>{-7}, {1.0, 2}), -3);
    EXPECT_EQ(reduced(Op::kSum, std::vector<int8_t>{7}, {0.5, 1}), 3);
    EXPECT_EQ(reduced(Op::kSum, std::vector<int64_t>{-1, -2}, {1.0, 4}), 0);
  }
}

TEST(Meaning, ScaledIntegersSaturate) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    EXPECT_EQ(reduced(Op::kSum, std::vector<int8_t>{100}, {2.0, 1}), 127);
    EXPECT_EQ(reduced(Op::kSum, std::vector<int8_t>{100}, {-2.0, 1}), -128);
    EXPECT_EQ(reduced(Op::kSum, std::vector<uint8_t>{200}, {2.0, 1}), 255);
    EXPECT_EQ(reduced(Op::kSum, std::vector<uint8_t>{200}, {-0.5, 1}), 0);
    EXPECT_EQ(reduced(Op::kSum, std::vector<int32_t>{1}, {1e300, 1}), std::numeric_limits<int32_t>::max());
    EXPECT_EQ(reduced(Op::kSum, std::vector<int64_t>{1}, {0x1p63, 1}), std::numeric_limits<int64_t>::max());
    EXPECT_EQ(reduced(Op::kSum, std::vector<int64_t>{1}, {-0x1p63, 1}), std::numeric_limits<int64_t>::min());
    EXPECT_EQ(reduced(Op::kSum, std::vector<int64_t>{0}, {infinity, 1}), 0);
  }
}

TEST(Meaning, LargeIntegersAreExactWithoutScale) {
  const int64_t odd = (int64_t{1} << 53) + 1;
  EXPECT_EQ(reduced(Op::kSum, std::vector<int64_t>{odd}), odd);
  EXPECT_EQ(reduced(Op::kSum, std::vector<int64_t>{odd, odd}), 2 * odd);
}

TEST(Meaning, IntegersWrap) {
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    EXPECT_EQ(reduced(Op::kSum, std::vector<int32_t>{std::numeric_limits<int32_t>::max(), 1}),
              std::numeric_limits<int32_t>::min());
    EXPECT_EQ(reduced(Op::kProduct, std::vector<int64_t>{int64_t{1} << 62, 4}), 0);
    EXPECT_EQ(reduced(Op::kProduct, std::vector<int16_t>{-32768, -32768}), 0);
    EXPECT_EQ(reduced(Op::kSum, std::vector<uint8_t>{255, 2}), 1);
  }
}

TEST(Meaning, NanInAnyInputGivesNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    for (const Op op : kOps) {
      for (size_t at = 0; at < 4; ++at) {
        std::vector<float> values(4, 1.0f);
        values[at] = nan;
        EXPECT_TRUE(std::isnan(reduced(op, values))) << isa << " " << name_of(op) << " " << at;
      }
    }
  }
}

TEST(Meaning, LaterOfEqualZerosIsKept) {
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    for (const Op op : {Op::kMin, Op::kMax}) {
      EXPECT_TRUE(std::signbit(reduced(op, std::vector<float>{0.0f, -0.0f}))) << isa << " " << name_of(op);
      EXPECT_FALSE(std::signbit(reduced(op, std::vector<float>{-0.0f, 0.0f}))) << isa << " " << name_of(op);
    }
  }
}

// 2048 + 1 is not a float16: summed there, every 1 would be lost.
TEST(Meaning, SixteenBitFloatsAreSummedInThirtyTwoAndRoundedOnce) {
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    std::vector<Float16> halves(5, Float16::from(1.0f));
    halves[0] = Float16::from(2048.0f);
    EXPECT_EQ(reduced(Op::kSum, halves).value(), 2052.0f);
    std::vector<Bfloat16> brains(5, Bfloat16::from(1.0f));
    brains[0] = Bfloat16::from(256.0f);
    EXPECT_EQ(reduced(Op::kSum, brains).value(), 260.0f);
    // The sum of two is beyond float16, their average is not.
    EXPECT_EQ(reduced(Op::kSum, std::vector<Float16>(2, Float16::from(60000.0f)), {1.0, 2}).value(), 60000.0f);
  }
}

template <typename T>
class Conversions : public ::testing::Test {};
using SmallTypes = ::testing::Types<Float16, Bfloat16>;
TYPED_TEST_SUITE(Conversions, SmallTypes, TypeNames);

TYPED_TEST(Conversions, EveryValueIsWidenedExactlyAndComesBack) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<uint16_t>(i);
  }
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    std::vector<float> wide(all.size());
    convert(oracle::dtype<TypeParam>(), Dtype::kF32, all.data(), wide.data(), all.size());
    std::vector<TypeParam> back(all.size());
    convert(Dtype::kF32, oracle::dtype<TypeParam>(), wide.data(), back.data(), all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      const TypeParam small{all[i]};
      ASSERT_EQ(identity_of(wide[i]), identity_of(small.value())) << isa << " " << i;
      ASSERT_EQ(identity_of(back[i]), identity_of(small)) << isa << " " << i;
    }
  }
}

// Numbers around every value and every midpoint, where rounding can go wrong, and any bits.
std::vector<float> numbers_to_narrow(const std::vector<float>& exact) {
  std::vector<float> numbers;
  const float infinity = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i + 1 < exact.size(); ++i) {
    const float middle = static_cast<float>((static_cast<double>(exact[i]) + exact[i + 1]) / 2);
    for (const float around : {exact[i], middle}) {
      numbers.insert(numbers.end(), {std::nextafter(around, -infinity), around, std::nextafter(around, infinity)});
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 500'000; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    float number;
    std::memcpy(&number, &bits, sizeof(number));
    numbers.push_back(number);
  }
  return numbers;
}

TYPED_TEST(Conversions, NarrowingRoundsToNearestEven) {
  std::vector<float> exact;
  for (int bits = 0; bits < 65536; ++bits) {
    exact.push_back(TypeParam{static_cast<uint16_t>(bits)}.value());
  }
  const auto numbers = numbers_to_narrow(exact);
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    std::vector<TypeParam> narrow(numbers.size());
    convert(Dtype::kF32, oracle::dtype<TypeParam>(), numbers.data(), narrow.data(), numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      ASSERT_EQ(identity_of(narrow[i]), identity_of(TypeParam::from(numbers[i])))
          << isa << " " << std::hexfloat << numbers[i];
    }
    // The same through a fold, whose elements go another way.
    std::vector<TypeParam> all(65536);
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = TypeParam{static_cast<uint16_t>(i)};
    }
    const Scale third{1.0, 3};
    std::vector<TypeParam> scaled(all.size());
    scale_to(oracle::dtype<TypeParam>(), all.data(), scaled.data(), all.size(), third);
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(identity_of(scaled[i]), identity_of(TypeParam::from(oracle::scaled(all[i].value(), third))))
          << isa << " " << i;
    }
  }
}

// A NaN whose payload is in the low bits only must not become infinity when they are cut off.
TYPED_TEST(Conversions, NanStaysNan) {
  const uint32_t patterns[] = {0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff, 0x7fc00000, 0x7f801fff, 0x7f80ffff};
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    for (const uint32_t pattern : patterns) {
      TypeParam narrow{};
      convert(Dtype::kF32, oracle::dtype<TypeParam>(), &pattern, &narrow, 1);
      EXPECT_TRUE(std::isnan(narrow.value())) << isa << " " << std::hex << pattern;
      EXPECT_EQ(narrow.bits >> 15, pattern >> 31) << isa << " " << std::hex << pattern;
    }
  }
}

TYPED_TEST(Conversions, AnyCountStaysInsideItsMemory) {
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    for (const size_t count : kCounts) {
      // Exactly as long as needed, one element off: the address sanitizer watches the ends.
      std::vector<float> wide(count + 1, 1.5f);
      std::vector<TypeParam> narrow(count + 1, TypeParam{0x1234});
      convert(Dtype::kF32, oracle::dtype<TypeParam>(), wide.data() + 1, narrow.data() + 1, count);
      EXPECT_EQ(narrow[0].bits, 0x1234);
      wide.assign(count + 1, -1.0f);
      convert(oracle::dtype<TypeParam>(), Dtype::kF32, narrow.data() + 1, wide.data() + 1, count);
      EXPECT_EQ(wide[0], -1.0f);
      for (size_t i = 1; i <= count; ++i) {
        ASSERT_EQ(wide[i], 1.5f);
      }
    }
  }
}

TEST(Variants, BaselineIsAlwaysAvailable) {
  EXPECT_EQ(runnable_isas().back(), "baseline");
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    EXPECT_EQ(active_isa(), isa);
  }
}

TEST(Variants, UnknownVariantIsRefusedAndChangesNothing) {
  const auto before = active_isa();
  EXPECT_THROW(use_isa("abacus"), base::Error);
  EXPECT_EQ(active_isa(), before);
}

// The choice is made once in a process, so each case runs in a new one.
class Environment : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

[[noreturn]] void tell_active_isa() {
  std::fprintf(stderr, "active=%s;", std::string(active_isa()).c_str());
  std::exit(0);
}

TEST_F(Environment, BestVariantIsUsedUnlessSmallerOneIsRequested) {
  ::unsetenv("FARANDOLE_ISA");
  EXPECT_EXIT(tell_active_isa(), ::testing::ExitedWithCode(0), "active=" + std::string(runnable_isas().front()) + ";");
  ::setenv("FARANDOLE_ISA", "baseline", 1);
  EXPECT_EXIT(tell_active_isa(), ::testing::ExitedWithCode(0), "active=baseline;");
  ::unsetenv("FARANDOLE_ISA");
}

TEST_F(Environment, VariantThatCannotRunGivesWarning) {
  ::setenv("FARANDOLE_ISA", "abacus", 1);
  EXPECT_EXIT(tell_active_isa(), ::testing::ExitedWithCode(0), "warning: FARANDOLE_ISA=abacus is not among.*baseline");
  ::unsetenv("FARANDOLE_ISA");
}

}  // namespace
}  // namespace farandole::reduce
