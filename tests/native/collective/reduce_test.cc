// Reduce to one root with every algorithm, in every world, for every type and operation.
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

struct Scales {
  reduce::Scale pre;
  reduce::Scale post;
};

void check(Member& member, const Choice& row, Dtype dtype, Op op, size_t count, int root, const Scales& scales) {
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < member.size(); ++rank) {
    inputs.push_back(testing::encode(dtype, testing::small_numbers(dtype, rank, count)));
  }
  const Bytes& mine = inputs[static_cast<size_t>(member.rank())];
  const Bytes expected = member.rank() == root ? testing::reduced(dtype, op, inputs, scales.pre, scales.post) : mine;
  for (const bool in_place : {false, true}) {
    Bytes output = in_place ? mine : Bytes(mine.size(), std::byte{0xee});
    const ReduceJob job{dtype,         op,    scales.pre, scales.post, in_place ? output.data() : mine.data(),
                        output.data(), count, root};
    member.run(member.world, row, job);
    ASSERT_TRUE(output == expected) << row.algorithm->name << " of " << count << " " << reduce::name_of(dtype) << ", "
                                    << reduce::name_of(op) << ", to " << root << ", on rank " << member.rank();
  }
}

class Reduce : public testing::EveryWorld {};

TEST_P(Reduce, RootGetsResultAndOthersKeepTheirInput) {
  run(4096, [&](Member& member) {
    const auto average_of_all = Scales{{}, {1, member.size()}};
    for (const auto& row : member.rows_of("reduce", member.world)) {
      for (const Dtype dtype : testing::kAllDtypes) {
        // None, one, and several chunks.
        for (const size_t count : {size_t{0}, size_t{1}, size_t{9001}}) {
          for (const Op op : testing::kAllOps) {
            const int root = static_cast<int>(count + static_cast<size_t>(op)) % member.size();
            ASSERT_NO_FATAL_FAILURE(check(member, row, dtype, op, count, root, {}));
          }
          ASSERT_NO_FATAL_FAILURE(check(member, row, dtype, Op::kSum, count, 0, average_of_all));
          ASSERT_NO_FATAL_FAILURE(check(member, row, dtype, Op::kSum, count, member.size() - 1, {{2, 1}, {0.5, 1}}));
        }
      }
    }
  });
}

TEST_P(Reduce, HasSameBitsAsAllreduceWithOneLevel) {
  run(4096, [&](Member& member) {
    const Choice allreduced = member.choose(Operation::kAllreduce, member.world, 1);
    if (std::string(allreduced.algorithm->name) == "two_level") {
      return;  // its order of additions is another one
    }
    for (const Dtype dtype : testing::kFloatDtypes) {
      std::vector<double> numbers(3001);
      for (size_t i = 0; i < numbers.size(); ++i) {
        numbers[i] =
            std::sin(static_cast<double>(i) * 0.37 + member.rank()) * std::pow(10.0, static_cast<double>(i % 5) - 2);
      }
      const Bytes input = testing::encode(dtype, numbers);
      Bytes everywhere(input.size());
      AllreduceJob allreduce{dtype, Op::kSum, {0.7, 1}, {1.3, member.size()}, {}};
      allreduce.pieces.push_back({input.data(), everywhere.data(), numbers.size()});
      member.run(member.world, allreduced, allreduce);
      Bytes at_root(input.size());
      const ReduceJob job{dtype,        Op::kSum,       {0.7, 1},       {1.3, member.size()},
                          input.data(), at_root.data(), numbers.size(), 0};
      member.run(member.world, member.choose(Operation::kReduce, member.world), job);
      ASSERT_TRUE(at_root == (member.rank() == 0 ? everywhere : input)) << reduce::name_of(dtype);
    }
  });
}

TEST_P(Reduce, MembersRunAheadOfTheRootAndOfEachOther) {
  run(4096, [&](Member& member) {
    // Other roots, groups and collectives in between, so that no member knows from its own work how far the others are.
    for (int turn = 0; turn < 40; ++turn) {
      const int root = turn % member.size();
      const auto count = 1 + static_cast<size_t>(turn) * 97;
      ASSERT_NO_FATAL_FAILURE(
          check(member, member.choose(Operation::kReduce, member.world), Dtype::kI32, Op::kSum, count, root, {}));
      if (turn % 3 == 0) {
        std::vector<int32_t> values(count, member.rank() == root ? turn : -1);
        const BroadcastJob job{values.data(), values.data(), count * 4, root};
        member.run(member.world, member.choose(Operation::kBroadcast, member.world), job);
        ASSERT_EQ(values, std::vector<int32_t>(count, turn));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backend, Reduce, testing::every_world(), testing::name_of_world);

}  // namespace
}  // namespace farandole::collective
