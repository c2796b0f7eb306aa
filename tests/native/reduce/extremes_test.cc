// The smallest and the largest of 16-bit floats, which are compared as integers: all pairs of the numbers where that
// could go wrong, and triples, in which what came out of the first two is compared again.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "reduce/kernels.h"
#include "reduce/oracle.h"
#include "reduce/samples.h"

namespace farandole::reduce {
namespace {

// Zeros, the ends of the subnormals, of the normals and of the NaNs, infinities, one, and their neighbours.
template <typename T>
std::vector<T> delicate_numbers() {
  std::vector<T> all;
  const int infinity = T::kInfinity;
  const int least_normal = infinity & -infinity;
  const auto one = static_cast<int>(T::from(1.0f).bits);
  for (const int magnitude : {0, 1, 2, least_normal - 1, least_normal, one - 1, one, one + 1, infinity - 2,
                              infinity - 1, infinity, infinity + 1, 0x7ffe, 0x7fff}) {
    all.push_back({static_cast<uint16_t>(magnitude)});
    all.push_back({static_cast<uint16_t>(magnitude | 0x8000)});
  }
  return all;
}

template <typename T>
class Extremes : public ::testing::Test {};
using SmallFloats = ::testing::Types<Float16, Bfloat16>;
TYPED_TEST_SUITE(Extremes, SmallFloats, TypeNames);

TYPED_TEST(Extremes, OfThreeInAnyOrder) {
  const auto numbers = delicate_numbers<TypeParam>();
  std::vector<std::vector<TypeParam>> inputs(3);
  for (const TypeParam a : numbers) {
    for (const TypeParam b : numbers) {
      for (const TypeParam c : numbers) {
        inputs[0].push_back(a);
        inputs[1].push_back(b);
        inputs[2].push_back(c);
      }
    }
  }
  const size_t count = inputs[0].size();
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    for (const Op op : {Op::kMin, Op::kMax}) {
      for (const size_t input_count : {2, 3}) {
        const std::vector<const void*> from = {inputs[0].data(), inputs[1].data(), inputs[2].data()};
        std::vector<TypeParam> got(count);
        void* const output = got.data();
        reduce_to(oracle::dtype<TypeParam>(), op, std::span(from).first(input_count), {&output, 1}, count, {});
        for (size_t i = 0; i < count; ++i) {
          float expected = oracle::combined(op, inputs[0][i].value(), inputs[1][i].value());
          if (input_count == 3) {
            expected = oracle::combined(op, expected, inputs[2][i].value());
          }
          ASSERT_EQ(identity_of(got[i]), identity_of(TypeParam::from(expected)))
              << isa << " " << name_of(op) << " of " << std::hex << inputs[0][i].bits << ", " << inputs[1][i].bits
              << (input_count == 3 ? " and the third " : ", not of ") << inputs[2][i].bits;
        }
      }
    }
  }
}

// One NaN among many numbers keeps its sign and its payload, so that its source can be found.
TYPED_TEST(Extremes, HandANanOnAsItIs) {
  const auto number = TypeParam::from(1.0f);
  for (const int nan : {TypeParam::kInfinity + 1, 0x7fff, 0x8000 | (TypeParam::kInfinity + 1), 0xffff}) {
    for (const Op op : {Op::kMin, Op::kMax}) {
      for (size_t at = 0; at < 4; ++at) {
        for (const auto isa : runnable_isas()) {
          const UsedIsa used(isa);
          std::vector<TypeParam> values(4, number);
          values[at].bits = static_cast<uint16_t>(nan);
          const std::vector<const void*> from = {&values[0], &values[1], &values[2], &values[3]};
          TypeParam got{};
          void* const output = &got;
          reduce_to(oracle::dtype<TypeParam>(), op, from, {&output, 1}, 1, {});
          EXPECT_EQ(got.bits, nan) << isa << " " << name_of(op) << " at " << at;
        }
      }
    }
  }
}

}  // namespace
}  // namespace farandole::reduce
