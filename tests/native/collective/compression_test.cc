// Compressed allreduces in every world: the error of results is bounded, nothing is lost in the long run, and all ranks
// get the same bits whatever else is in the bucket.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "collective/members.h"
#include "reduce/quantize.h"
#include "support/numbers.h"

namespace farandole::collective {
namespace {

using reduce::Dtype;
using testing::Bytes;
using testing::Member;
using Vector = std::vector<double>;

constexpr Dtype kDtypes[] = {Dtype::kF16, Dtype::kBf16, Dtype::kF32};
// Around chunks, slices and segments.
constexpr size_t kCounts[] = {0, 1, 7, 256, 257, 2000};
// More than a segment. It is made of float32 only: its numbers take longer to make than to send.
constexpr size_t kManyElements = 270'001;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Between -0.9 and 1.1.
Vector random_numbers(int rank, size_t count, unsigned seed) {
  std::minstd_rand random(seed * 1000 + static_cast<unsigned>(rank) + 1);
  Vector numbers(count);
  for (double& number : numbers) {
    number = static_cast<double>(random()) / (1U << 30) - 0.9;
  }
  return numbers;
}

// What one rank puts into compressed allreduces and gets out of them.
struct Tensors {
  Dtype dtype = Dtype::kF32;
  std::vector<Bytes> inputs;
  std::vector<Bytes> outputs;
  std::vector<std::vector<float>> residuals;  // none: what is not sent is lost

  Tensors(Dtype of_dtype, const std::vector<Vector>& numbers, bool keeps = true) : dtype(of_dtype) {
    for (const Vector& each : numbers) {
      inputs.push_back(testing::encode(dtype, each));
      outputs.emplace_back(inputs.back().size(), std::byte{0xee});
      if (keeps) {
        residuals.emplace_back(each.size(), 0.0F);
      }
    }
  }

  CompressedJob job(double ratio, bool absent = false) {
    CompressedJob job;
    job.ratio = ratio;
    job.reduction.dtype = dtype;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const size_t count = inputs[i].size() / reduce::size_of(dtype);
      if (absent) {
        job.reduction.pieces.push_back({nullptr, nullptr, count});
        job.residuals.push_back(nullptr);
      } else {
        job.reduction.pieces.push_back({inputs[i].data(), outputs[i].data(), count});
        job.residuals.push_back(residuals.empty() ? nullptr : residuals[i].data());
      }
    }
    return job;
  }

  Vector output(size_t i) const { return testing::decode(dtype, outputs[i]); }
};

void compress(Member& member, const std::string& name, const CompressedJob& job) {
  member.run(member.world, member.choose(Operation::kCompressedAllreduce, member.world, 0, name), job);
}

Vector sum_of(const std::vector<Vector>& vectors) {
  Vector sum(vectors.front().size(), 0);
  for (const Vector& vector : vectors) {
    std::transform(sum.begin(), sum.end(), vector.begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

// The inputs of all ranks, as `dtype` holds them.
std::vector<Vector> inputs_of_all(const Member& member, Dtype dtype, size_t count, unsigned seed) {
  std::vector<Vector> all;
  for (int rank = 0; rank < member.size(); ++rank) {
    all.push_back(testing::decode(dtype, testing::encode(dtype, random_numbers(rank, count, seed))));
  }
  return all;
}

// Half of a type's step at a number of this size.
double half_step(Dtype dtype, double number) {
  const int digits = dtype == Dtype::kF16 ? 11 : dtype == Dtype::kBf16 ? 8 : 22;
  return std::ldexp(std::abs(number), -digits) + std::ldexp(1, -24);
}

// How far the int8 sum may be off: half a scale for every rank's chunk, and half a scale of the sum's.
Vector int8_bound(const std::vector<Vector>& inputs) {
  const size_t count = inputs.front().size();
  Vector bound(count, 0);
  for (size_t from = 0; from < count; from += reduce::kQuantizedChunk) {
    const size_t to = std::min(count, from + reduce::kQuantizedChunk);
    double total = 0;
    double most_of_sum = 0;
    for (const Vector& input : inputs) {
      double most = 0;
      for (size_t i = from; i < to; ++i) {
        most = std::max(most, std::abs(input[i]));
      }
      total += most / 254;
      most_of_sum += most;
    }
    std::fill(bound.begin() + static_cast<ptrdiff_t>(from), bound.begin() + static_cast<ptrdiff_t>(to),
              (total + (most_of_sum + total) / 254) * 1.0001);
  }
  return bound;
}

// What all ranks have got, to be compared when they are done.
class Results {
 public:
  explicit Results(int size) : by_rank_(static_cast<size_t>(size)) {}
  void add(int rank, const std::vector<Bytes>& outputs) {
    auto& mine = by_rank_[static_cast<size_t>(rank)];
    mine.insert(mine.end(), outputs.begin(), outputs.end());
  }
  void expect_the_same_bits() const {
    for (size_t rank = 1; rank < by_rank_.size(); ++rank) {
      EXPECT_TRUE(by_rank_[rank] == by_rank_[0]) << "rank " << rank << " holds other bits than rank 0";
    }
  }

 private:
  std::vector<std::vector<Bytes>> by_rank_;
};

class Compressed : public testing::EveryWorld {};

TEST_P(Compressed, Int8IsOffByHalfAScaleEachWay) {
  Results results(size());
  run(1 << 16, [&](Member& member) {
    for (const Dtype dtype : kDtypes) {
      std::vector<size_t> counts(std::begin(kCounts), std::end(kCounts));
      if (dtype == Dtype::kF32) {
        counts.push_back(kManyElements);
      }
      for (const size_t count : counts) {
        const std::vector<Vector> all = inputs_of_all(member, dtype, count, 1);
        Tensors tensors(dtype, {all[static_cast<size_t>(member.rank())]}, /*keeps=*/false);
        compress(member, "int8", tensors.job(0));
        results.add(member.rank(), tensors.outputs);
        const Vector sum = sum_of(all);
        const Vector bound = int8_bound(all);
        const Vector got = tensors.output(0);
        for (size_t i = 0; i < count; ++i) {
          const double allowed = (member.size() == 1 ? 0 : bound[i]) + half_step(dtype, std::abs(sum[i]) + bound[i]);
          ASSERT_NEAR(got[i], sum[i], allowed) << i << " of " << count << " " << reduce::name_of(dtype);
        }
      }
    }
  });
  results.expect_the_same_bits();
}

TEST_P(Compressed, TopkSendsLargestElementsOfEachRank) {
  Results results(size());
  run(1 << 16, [&](Member& member) {
    for (const size_t count : kCounts) {
      const std::vector<Vector> all = inputs_of_all(member, Dtype::kF32, count, 2);
      Tensors tensors(Dtype::kF32, {all[static_cast<size_t>(member.rank())]});
      compress(member, "topk", tensors.job(0.01));
      results.add(member.rank(), tensors.outputs);
      const auto taken = static_cast<size_t>(std::ceil(static_cast<double>(count) * 0.01));
      std::vector<Vector> sent = all;
      for (Vector& each : sent) {
        std::vector<double> magnitudes;
        for (const double number : each) {
          magnitudes.push_back(std::abs(number));
        }
        std::sort(magnitudes.begin(), magnitudes.end(), std::greater<>());
        for (double& number : each) {
          number = member.size() == 1 || (taken > 0 && std::abs(number) >= magnitudes[taken - 1]) ? number : 0;
        }
      }
      const Vector sum = sum_of(sent);
      const Vector got = tensors.output(0);
      for (size_t i = 0; i < count; ++i) {
        ASSERT_NEAR(got[i], sum[i], half_step(Dtype::kF32, sum[i])) << i << " of " << count;
        const double kept = all[static_cast<size_t>(member.rank())][i] - sent[static_cast<size_t>(member.rank())][i];
        ASSERT_EQ(tensors.residuals[0][i], kept) << i << " of " << count;
      }
    }
  });
  results.expect_the_same_bits();
}

// The sum of all outputs over all steps, plus the residuals of all ranks, is the sum of all inputs.
TEST_P(Compressed, NothingIsLostInTheLongRun) {
  constexpr size_t kCount = 3000;
  constexpr unsigned kSteps = 12;
  for (const char* const name : {"int8", "topk"}) {
    std::vector<Vector> owed(static_cast<size_t>(size()));
    Vector delivered(kCount, 0);
    run(1 << 16, [&](Member& member) {
      Tensors tensors(Dtype::kF32, {Vector(kCount)});
      for (unsigned step = 0; step < kSteps; ++step) {
        tensors.inputs[0] = testing::encode(Dtype::kF32, random_numbers(member.rank(), kCount, 10 + step));
        compress(member, name, tensors.job(0.1));
        if (member.rank() == 0) {
          delivered = sum_of({delivered, tensors.output(0)});
        }
      }
      owed[static_cast<size_t>(member.rank())].assign(tensors.residuals[0].begin(), tensors.residuals[0].end());
    });
    Vector put_in(kCount, 0);
    for (int rank = 0; rank < size(); ++rank) {
      for (unsigned step = 0; step < kSteps; ++step) {
        put_in = sum_of({put_in, random_numbers(rank, kCount, 10 + step)});
      }
    }
    const Vector found = sum_of({delivered, sum_of(owed)});
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(found[i], put_in[i], 1e-4) << name << " at " << i;
    }
  }
}

TEST_P(Compressed, BitsDoNotDependOnOtherTensorsInBucket) {
  run(1 << 16, [&](Member& member) {
    for (const char* const name : {"int8", "topk"}) {
      std::vector<Vector> numbers;
      unsigned seed = 100;
      for (const size_t count : {size_t{5}, size_t{0}, size_t{1}, size_t{3000}, kManyElements, size_t{333}}) {
        numbers.push_back(random_numbers(member.rank(), count, ++seed));
      }
      Tensors fused(Dtype::kBf16, numbers);
      for (int step = 0; step < 2; ++step) {  // the second one with residuals
        compress(member, name, fused.job(0.05));
      }
      for (size_t i = 0; i < numbers.size(); ++i) {
        Tensors alone(Dtype::kBf16, {numbers[i]});
        for (int step = 0; step < 2; ++step) {
          compress(member, name, alone.job(0.05));
        }
        ASSERT_TRUE(alone.outputs[0] == fused.outputs[i]) << name << ", tensor " << i;
        ASSERT_TRUE(alone.residuals[0] == fused.residuals[i]) << name << ", residual " << i;
      }
    }
  });
}

TEST_P(Compressed, ScalesBeforeAndAfterInPlace) {
  run(1 << 16, [&](Member& member) {
    for (const char* const name : {"int8", "topk"}) {
      // A tensor that loses nothing: all of its elements are multiples of its scale, and all are sent.
      Vector numbers(256);
      for (size_t i = 0; i < numbers.size(); ++i) {
        numbers[i] = static_cast<double>(i % 255) - 127;
      }
      Tensors tensors(Dtype::kF32, {numbers});
      CompressedJob job = tensors.job(1.0);
      job.reduction.prescale = {2, 1};
      job.reduction.postscale = {1, member.size()};
      job.reduction.pieces[0].output = tensors.inputs[0].data();
      compress(member, name, job);
      const Vector got = testing::decode(Dtype::kF32, tensors.inputs[0]);
      for (size_t i = 0; i < numbers.size(); ++i) {
        ASSERT_NEAR(got[i], 2 * numbers[i], 1e-4) << name;
      }
    }
  });
}

TEST_P(Compressed, AbsentMemberAddsNothing) {
  if (size() == 1) {
    return;  // nobody would be left
  }
  run(1 << 16, [&](Member& member) {
    for (const char* const name : {"int8", "topk"}) {
      for (int absent = 0; absent < member.size(); ++absent) {
        Vector numbers(400, 0);
        numbers[3] = 1 + member.rank();
        Tensors tensors(Dtype::kF32, {numbers});
        compress(member, name, tensors.job(0.01, absent == member.rank()));
        if (absent == member.rank()) {
          ASSERT_TRUE(tensors.outputs[0] == Bytes(tensors.outputs[0].size(), std::byte{0xee}));
          continue;
        }
        const int sum_of_all = member.size() * (member.size() + 1) / 2;
        const double expected = sum_of_all - (1 + absent);
        ASSERT_NEAR(tensors.output(0)[3], expected, expected * 0.01) << name;
        ASSERT_EQ(tensors.output(0)[5], 0) << name;
      }
    }
  });
}

TEST_P(Compressed, NonFiniteElementsArriveAndLeaveNoResidual) {
  run(1 << 16, [&](Member& member) {
    for (const char* const name : {"int8", "topk"}) {
      for (const float odd : {kNan, kInfinity}) {
        Vector numbers(1000, 0.5);
        if (member.rank() == member.size() - 1) {
          numbers[700] = odd;
        }
        Tensors tensors(Dtype::kF32, {numbers});
        compress(member, name, tensors.job(0.001));
        ASSERT_FALSE(std::isfinite(tensors.output(0)[700])) << name << " " << odd;
        for (size_t i = 0; i < numbers.size(); ++i) {
          ASSERT_TRUE(i == 700 || std::isfinite(tensors.output(0)[i])) << name << " " << i;
          ASSERT_TRUE(std::isfinite(tensors.residuals[0][i])) << name << " " << i;
        }
      }
    }
  });
}

TEST_P(Compressed, GroupsAreIndependent) {
  if (size() < 4) {
    return;
  }
  run(1 << 16, [&](Member& member) {
    std::vector<int> mine;
    for (int rank = member.rank() % 2; rank < member.size(); rank += 2) {
      mine.push_back(rank);
    }
    const collective::Group group = member.group_of(1 + static_cast<uint32_t>(member.rank() % 2), mine);
    for (const char* const name : {"int8", "topk"}) {
      Tensors tensors(Dtype::kF32, {Vector(10, 127.0 * (1 + member.rank() % 2))});
      member.run(group, member.choose(Operation::kCompressedAllreduce, group, 0, name), tensors.job(1.0));
      const double expected = 127.0 * (1 + member.rank() % 2) * static_cast<double>(mine.size());
      ASSERT_NEAR(tensors.output(0)[9], expected, 1e-3) << name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backend, Compressed, testing::every_world(), testing::name_of_world);

}  // namespace
}  // namespace farandole::collective
