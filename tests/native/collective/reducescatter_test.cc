// Reducescatter with every algorithm, in every world, for every type and operation.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "collective/members.h"
#include "support/numbers.h"

namespace farandole::collective {
namespace {

using reduce::Dtype;
using reduce::Op;
using testing::Bytes;
using testing::Member;

constexpr size_t kRowElements = 3;

// Rows as the engine shares them out: the first members get one more.
std::vector<size_t> counts_of(size_t rows, size_t members) {
  std::vector<size_t> counts;
  for (size_t k = 0; k < members; ++k) {
    counts.push_back((rows / members + (k < rows % members ? 1 : 0)) * kRowElements);
  }
  return counts;
}

struct Scales {
  reduce::Scale pre;
  reduce::Scale post;
};

void check(Member& member, const collective::Choice& row, Dtype dtype, Op op, size_t rows, const Scales& scales) {
  const auto n = static_cast<size_t>(member.size());
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < member.size(); ++rank) {
    inputs.push_back(testing::encode(dtype, testing::small_numbers(dtype, rank, rows * kRowElements)));
  }
  ReducescatterJob job;
  job.dtype = dtype;
  job.op = op;
  job.prescale = scales.pre;
  job.postscale = scales.post;
  job.counts = counts_of(rows, n);
  job.input = inputs[static_cast<size_t>(member.rank())].data();
  const auto me = static_cast<size_t>(member.rank());
  Bytes output(job.counts[me] * reduce::size_of(dtype), std::byte{0xee});
  job.output = output.data();
  member.run(member.world, row, job);

  const Bytes whole = testing::reduced(dtype, op, inputs, scales.pre, scales.post);
  size_t before = 0;
  for (size_t k = 0; k < me; ++k) {
    before += job.counts[k] * reduce::size_of(dtype);
  }
  const Bytes expected(whole.begin() + static_cast<ptrdiff_t>(before),
                       whole.begin() + static_cast<ptrdiff_t>(before + output.size()));
  ASSERT_TRUE(output == expected) << row.algorithm->name << " of " << rows << " rows of " << reduce::name_of(dtype)
                                  << ", " << reduce::name_of(op) << ", on rank " << member.rank();
}

class Reducescatter : public testing::EveryWorld {};

TEST_P(Reducescatter, GivesEveryMemberItsRows) {
  run(4096, [&](Member& member) {
    const auto average_of_all = Scales{{}, {1, member.size()}};
    for (const auto& row : member.rows_of("reducescatter", member.world)) {
      for (const Dtype dtype : testing::kAllDtypes) {
        // No row for some, one row for some, one row more for some, and several chunks.
        for (const size_t rows : {size_t{0}, size_t{1}, size_t{7}, size_t{64}, size_t{3001}}) {
          for (const Op op : testing::kAllOps) {
            ASSERT_NO_FATAL_FAILURE(check(member, row, dtype, op, rows, {}));
          }
          ASSERT_NO_FATAL_FAILURE(check(member, row, dtype, Op::kSum, rows, average_of_all));
          ASSERT_NO_FATAL_FAILURE(check(member, row, dtype, Op::kSum, rows, {{2, 1}, {0.5, 1}}));
        }
      }
    }
  });
}

TEST_P(Reducescatter, UsesLinksIfStagingIsTooSmall) {
  run(64, [&](Member& member) {
    for (const auto& row : member.rows_of("reducescatter", member.world)) {
      ASSERT_NO_FATAL_FAILURE(check(member, row, Dtype::kF32, Op::kSum, 50, {}));
    }
  });
}

TEST_P(Reducescatter, HasSameBitsAsAllreduceWithOneLevel) {
  run(4096, [&](Member& member) {
    if (std::string(member.choose(Operation::kAllreduce, member.world, 1).algorithm->name) == "two_level") {
      return;  // its order of additions is another one
    }
    for (const Dtype dtype : testing::kFloatDtypes) {
      constexpr size_t kRows = 1001;
      std::vector<double> numbers(kRows * kRowElements);
      for (size_t i = 0; i < numbers.size(); ++i) {
        const auto at = static_cast<double>(i);
        numbers[i] = std::sin(at * 0.37 + member.rank()) * std::pow(10.0, static_cast<double>(i % 5) - 2);
      }
      const Bytes input = testing::encode(dtype, numbers);
      Bytes whole(input.size());
      collective::AllreduceJob allreduce{dtype, Op::kSum, {0.7, 1}, {1.3, member.size()}, {}};
      allreduce.pieces.push_back({input.data(), whole.data(), numbers.size()});
      member.run(member.world, member.choose(Operation::kAllreduce, member.world, input.size()), allreduce);

      ReducescatterJob job{dtype, Op::kSum, {0.7, 1}, {1.3, member.size()}, input.data(), {}, nullptr};
      job.counts = counts_of(kRows, static_cast<size_t>(member.size()));
      const auto me = static_cast<size_t>(member.rank());
      Bytes part(job.counts[me] * reduce::size_of(dtype));
      job.output = part.data();
      member.run(member.world, member.choose(Operation::kReducescatter, member.world), job);
      size_t before = 0;
      for (size_t k = 0; k < me; ++k) {
        before += job.counts[k] * reduce::size_of(dtype);
      }
      ASSERT_EQ(std::memcmp(part.data(), whole.data() + before, part.size()), 0) << reduce::name_of(dtype);
    }
  });
}

TEST_P(Reducescatter, OutputMayReplaceOwnPartOfInput) {
  run(4096, [&](Member& member) {
    for (const auto& row : member.rows_of("reducescatter", member.world)) {
      constexpr size_t kRows = 5003;
      std::vector<Bytes> inputs;
      for (int rank = 0; rank < member.size(); ++rank) {
        inputs.push_back(testing::encode(Dtype::kF32, testing::small_numbers(Dtype::kF32, rank, kRows * kRowElements)));
      }
      const Bytes whole = testing::reduced(Dtype::kF32, Op::kSum, inputs);
      const auto me = static_cast<size_t>(member.rank());
      ReducescatterJob job;
      job.counts = counts_of(kRows, inputs.size());
      job.input = inputs[me].data();
      const size_t before = 4 * std::accumulate(job.counts.begin(), job.counts.begin() + member.rank(), size_t{0});
      job.output = inputs[me].data() + before;
      member.run(member.world, row, job);
      ASSERT_EQ(std::memcmp(job.output, whole.data() + before, job.counts[me] * 4), 0) << row.algorithm->name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backend, Reducescatter, testing::every_world(), testing::name_of_world);

}  // namespace
}  // namespace farandole::collective
