// Adasum in every world, against the formula applied along the tree that native/collective/allreduce/adasum.cc draws.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "collective/members.h"
#include "support/numbers.h"

namespace farandole::collective {
namespace {

using reduce::Dtype;
using testing::Bytes;
using testing::Member;
using Vector = std::vector<double>;

double dot(const Vector& a, const Vector& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

Vector combined(const Vector& a, const Vector& b) {
  const double tiny = std::sqrt(std::numeric_limits<double>::min());
  const double aa = dot(a, a);
  const double bb = dot(b, b);
  const double for_a = aa < tiny ? 1 : 1 - dot(a, b) / (2 * aa);
  const double for_b = bb < tiny ? 1 : 1 - dot(a, b) / (2 * bb);
  Vector sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    sum[i] = for_a * a[i] + for_b * b[i];
  }
  return sum;
}

// Folds the first pairs until the number of vectors is a power of two, then combines neighbours until one is left.
Vector reference(std::vector<Vector> vectors) {
  size_t leaves = 1;
  while (leaves * 2 <= vectors.size()) {
    leaves *= 2;
  }
  for (size_t k = 0; vectors.size() > leaves; ++k) {
    vectors[k] = combined(vectors[k], vectors[k + 1]);
    vectors.erase(vectors.begin() + static_cast<ptrdiff_t>(k) + 1);
  }
  while (vectors.size() > 1) {
    std::vector<Vector> next;
    for (size_t k = 0; k < vectors.size(); k += 2) {
      next.push_back(combined(vectors[k], vectors[k + 1]));
    }
    vectors = std::move(next);
  }
  return vectors.front();
}

// A gradient of `rank`, as `dtype` holds it.
Bytes gradient(Dtype dtype, int rank, size_t count, unsigned seed) {
  std::mt19937 random(seed * 1000 + static_cast<unsigned>(rank));
  std::normal_distribution<double> normal(0.1, 1);
  Vector numbers(count);
  for (double& number : numbers) {
    number = normal(random);
  }
  return testing::encode(dtype, numbers);
}

double rounding_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16:
      return std::ldexp(1, -10);
    case Dtype::kBf16:
      return std::ldexp(1, -7);
    case Dtype::kF32:
      return std::ldexp(1, -20);
    default:
      return std::ldexp(1, -48);
  }
}

void expect_close(Dtype dtype, const Bytes& got, const Vector& expected, const std::string& what) {
  const Vector numbers = testing::decode(dtype, got);
  ASSERT_EQ(numbers.size(), expected.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    ASSERT_NEAR(numbers[i], expected[i], rounding_of(dtype) * (1 + std::abs(expected[i])))
        << what << " of " << reduce::name_of(dtype) << " at " << i;
  }
}

// One Adasum of tensors of these sizes; a rank in `absent` has none.
std::vector<Bytes> adasum(Member& member, Dtype dtype, const std::vector<Bytes>& inputs, bool is_absent = false,
                          const reduce::Scale& prescale = {}, const reduce::Scale& postscale = {}) {
  std::vector<Bytes> outputs;
  AllreduceJob job;
  job.dtype = dtype;
  job.prescale = prescale;
  job.postscale = postscale;
  outputs.reserve(inputs.size());
  for (const Bytes& input : inputs) {
    outputs.emplace_back(input.size(), std::byte{0xee});
    const size_t count = input.size() / reduce::size_of(dtype);
    if (is_absent) {
      job.pieces.push_back({nullptr, nullptr, count});
    } else {
      job.pieces.push_back({input.data(), outputs.back().data(), count});
    }
  }
  member.run(member.world, member.choose(Operation::kAdasum, member.world), job);
  return outputs;
}

// What all ranks have got, to be compared when they are done.
class Results {
 public:
  explicit Results(int size) : by_rank_(static_cast<size_t>(size)) {}
  void add(int rank, const std::vector<Bytes>& outputs) {
    for (const Bytes& output : outputs) {
      by_rank_[static_cast<size_t>(rank)].push_back(output);
    }
  }
  void expect_the_same_bits() const {
    for (size_t rank = 1; rank < by_rank_.size(); ++rank) {
      EXPECT_TRUE(by_rank_[rank] == by_rank_[0]) << "rank " << rank << " holds other bits than rank 0";
    }
  }

 private:
  std::vector<std::vector<Bytes>> by_rank_;
};

class Adasum : public testing::EveryWorld {};

TEST_P(Adasum, FollowsTheFormulaAlongTheTree) {
  Results results(size());
  run(4096, [&](Member& member) {
    for (const Dtype dtype : testing::kFloatDtypes) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{7}, size_t{1000}, size_t{20'011}}) {
        std::vector<Vector> all;
        for (int rank = 0; rank < member.size(); ++rank) {
          all.push_back(testing::decode(dtype, gradient(dtype, rank, count, 1)));
        }
        const auto outputs = adasum(member, dtype, {gradient(dtype, member.rank(), count, 1)});
        results.add(member.rank(), outputs);
        ASSERT_NO_FATAL_FAILURE(expect_close(dtype, outputs.front(), reference(all), std::to_string(count)));
      }
    }
  });
  results.expect_the_same_bits();
}

TEST_P(Adasum, FusedTensorsHaveSeparateFactors) {
  run(4096, [&](Member& member) {
    for (const Dtype dtype : testing::kFloatDtypes) {
      std::vector<Bytes> inputs;
      unsigned seed = 0;
      for (const size_t count : {size_t{5}, size_t{0}, size_t{1}, size_t{3000}, size_t{16}, size_t{333}}) {
        inputs.push_back(gradient(dtype, member.rank(), count, ++seed));
      }
      const std::vector<Bytes> fused = adasum(member, dtype, inputs);
      for (size_t i = 0; i < inputs.size(); ++i) {
        ASSERT_TRUE(adasum(member, dtype, {inputs[i]}).front() == fused[i]) << "bits depend on company, tensor " << i;
      }
    }
  });
}

TEST_P(Adasum, SumsOrthogonalVectorsAndAveragesParallelOnes) {
  run(4096, [&](Member& member) {
    for (const Dtype dtype : testing::kFloatDtypes) {
      const auto n = static_cast<size_t>(member.size());
      Vector own(n * 3, 0);
      own[static_cast<size_t>(member.rank()) * 3] = 2;
      Vector sum(n * 3, 0);
      for (size_t k = 0; k < n; ++k) {
        sum[k * 3] = 2;
      }
      ASSERT_EQ(testing::decode(dtype, adasum(member, dtype, {testing::encode(dtype, own)}).front()), sum);

      const Vector same = {1, -2, 0.5, 4, 8, -16, 3};
      ASSERT_EQ(testing::decode(dtype, adasum(member, dtype, {testing::encode(dtype, same)}).front()), same);
    }
  });
}

TEST_P(Adasum, ScalesBeforeAndAfter) {
  run(4096, [&](Member& member) {
    for (const Dtype dtype : testing::kFloatDtypes) {
      std::vector<Vector> all;
      for (int rank = 0; rank < member.size(); ++rank) {
        all.push_back(testing::decode(dtype, gradient(dtype, rank, 100, 3)));
        for (double& number : all.back()) {
          number *= 2;
        }
      }
      Vector expected = reference(all);
      for (double& number : expected) {
        number /= 4;
      }
      const auto outputs = adasum(member, dtype, {gradient(dtype, member.rank(), 100, 3)}, false, {2, 1}, {1, 4});
      ASSERT_NO_FATAL_FAILURE(expect_close(dtype, outputs.front(), expected, "scaled"));
    }
  });
}

TEST_P(Adasum, AbsentMemberHasZeroGradient) {
  if (size() == 1) {
    return;  // nobody would be left
  }
  run(4096, [&](Member& member) {
    for (const Dtype dtype : testing::kFloatDtypes) {
      for (int absent = 0; absent < member.size(); ++absent) {
        std::vector<Vector> all;
        for (int rank = 0; rank < member.size(); ++rank) {
          all.push_back(testing::decode(dtype, gradient(dtype, rank, 300, 4)));
        }
        std::ranges::fill(all[static_cast<size_t>(absent)], 0);
        const bool is_me = absent == member.rank();
        const auto outputs = adasum(member, dtype, {gradient(dtype, member.rank(), 300, 4)}, is_me, {2, 1}, {1, 2});
        if (is_me) {
          ASSERT_TRUE(outputs.front() == Bytes(outputs.front().size(), std::byte{0xee}));
        } else {
          ASSERT_NO_FATAL_FAILURE(expect_close(dtype, outputs.front(), reference(all), "with an absent one"));
        }
      }
    }
  });
}

TEST_P(Adasum, TinyVectorsAreSummed) {
  run(4096, [&](Member& member) {
    // Their squared norm is far below what has a direction: all factors are 1.
    const Vector tiny(5, 1e-100);
    const auto outputs = adasum(member, Dtype::kF64, {testing::encode(Dtype::kF64, tiny)});
    const Vector expected(5, 1e-100 * member.size());
    const Vector got = testing::decode(Dtype::kF64, outputs.front());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], expected[i], 1e-112);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backend, Adasum, testing::every_world(), testing::name_of_world);

}  // namespace
}  // namespace farandole::collective
