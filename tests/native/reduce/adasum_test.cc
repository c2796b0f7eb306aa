#include "reduce/adasum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "reduce/kernels.h"
#include "reduce/oracle.h"

namespace farandole::reduce {
namespace {

constexpr size_t kCounts[] = {0, 1, 7, 8, 9, 31, 1023, 4097};

template <typename T>
std::vector<T> random_vector(std::mt19937_64& random, size_t count) {
  std::normal_distribution<double> normal(0, 3);
  std::vector<T> values(count);
  for (T& value : values) {
    value = static_cast<T>(normal(random));
  }
  return values;
}

// As the header says it: element i in lane i % 8, then the lanes.
template <typename T>
double product(const std::vector<T>& a, const std::vector<T>& b) {
  double lanes[8] = {};
  for (size_t i = 0; i < a.size(); ++i) {
    lanes[i % 8] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

template <typename T>
class Adasum : public ::testing::Test {
 protected:
  static constexpr Dtype kDtype = oracle::dtype<T>();

  void SetUp() override { before_ = active_isa(); }
  void TearDown() override { use_isa(before_); }

  static std::vector<T> combined(const std::vector<T>& a, const std::vector<T>& b) {
    std::vector<T> sum(a.size());
    const Factors factors = adasum_factors(multiply(kDtype, a.data(), b.data(), a.size()));
    blend(kDtype, a.data(), b.data(), factors, sum.data(), a.size());
    return sum;
  }

 private:
  std::string_view before_;
};

using Floats = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Adasum, Floats);

TYPED_TEST(Adasum, EveryInstructionSetGivesTheBitsOfThePlainLoop) {
  std::mt19937_64 random(1);
  for (const size_t count : kCounts) {
    const auto a = random_vector<TypeParam>(random, count);
    const auto b = random_vector<TypeParam>(random, count);
    const Factors factors{0.7, -1.3};
    std::vector<TypeParam> expected(count);
    for (size_t i = 0; i < count; ++i) {
      expected[i] = static_cast<TypeParam>(a[i] * factors.a + b[i] * factors.b);
    }
    for (const std::string_view isa : runnable_isas()) {
      use_isa(isa);
      const Products products = multiply(this->kDtype, a.data(), b.data(), count);
      EXPECT_EQ(products.dot, product(a, b)) << isa << " " << count;
      EXPECT_EQ(products.a_squared, product(a, a)) << isa << " " << count;
      EXPECT_EQ(products.b_squared, product(b, b)) << isa << " " << count;
      std::vector<TypeParam> sum = a;
      blend(this->kDtype, sum.data(), b.data(), factors, sum.data(), count);
      EXPECT_EQ(sum, expected) << isa << " " << count;
    }
  }
}

TYPED_TEST(Adasum, OrthogonalVectorsAreSummed) {
  EXPECT_EQ(this->combined({3, 0, 0, 0, 0, 0, 0, 0, 0, 1}, {0, 5, 0, 0, 0, 0, 0, 0, 7, 0}),
            (std::vector<TypeParam>{3, 5, 0, 0, 0, 0, 0, 0, 7, 1}));
}

TYPED_TEST(Adasum, ParallelVectorsAreAveraged) {
  EXPECT_EQ(this->combined({1, 2, -4}, {1, 2, -4}), (std::vector<TypeParam>{1, 2, -4}));
  EXPECT_EQ(this->combined({1, 2, -4}, {4, 8, -16}), (std::vector<TypeParam>{2.5, 5, -10}));
}

TYPED_TEST(Adasum, ZeroChangesNothing) {
  EXPECT_EQ(this->combined({1, 2, -4}, {0, 0, 0}), (std::vector<TypeParam>{1, 2, -4}));
  EXPECT_EQ(this->combined({0, 0, 0}, {1, 2, -4}), (std::vector<TypeParam>{1, 2, -4}));
  EXPECT_EQ(this->combined({0, 0}, {0, 0}), (std::vector<TypeParam>{0, 0}));
}

TEST(AdasumFactors, TinyNormHasFactorOne) {
  const double smallest = std::sqrt(std::numeric_limits<double>::min());
  EXPECT_EQ(adasum_factors({smallest, smallest, smallest}).a, 0.5);
  const Factors factors = adasum_factors({smallest, smallest / 2, smallest});
  EXPECT_EQ(factors.a, 1.0);
  EXPECT_EQ(factors.b, 0.5);
  EXPECT_EQ(adasum_factors({0, 0, 0}).a, 1.0);
}

TEST(AdasumFactors, AreSymmetric) {
  const Factors one = adasum_factors({1.7, 2.9, 5.3});
  const Factors other = adasum_factors({1.7, 5.3, 2.9});
  EXPECT_EQ(one.a, other.b);
  EXPECT_EQ(one.b, other.a);
}

}  // namespace
}  // namespace farandole::reduce
