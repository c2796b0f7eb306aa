// Allreduce with members that are absent, for every algorithm, type and operation.
#include <gtest/gtest.h>

#include "collective/members.h"
#include "support/numbers.h"

namespace farandole::collective {
namespace {

using reduce::Dtype;
using reduce::Op;
using testing::Bytes;
using testing::Member;

// Each rank is present for the tensors that `is_present` says.
using Presence = std::function<bool(int rank, size_t tensor)>;

struct Case {
  collective::Choice row;
  Dtype dtype;
  Op op;
  Presence is_present;
  reduce::Scale prescale;
  reduce::Scale postscale;
};

void check(Member& member, const Case& with, const std::vector<size_t>& counts) {
  AllreduceJob job{with.dtype, with.op, with.prescale, with.postscale, {}};
  std::vector<Bytes> expected;
  std::vector<Bytes> values;
  for (size_t tensor = 0; tensor < counts.size(); ++tensor) {
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < member.size(); ++rank) {
      if (with.is_present(rank, tensor)) {
        inputs.push_back(testing::encode(with.dtype, testing::small_numbers(with.dtype, rank, counts[tensor])));
      }
    }
    expected.push_back(testing::reduced(with.dtype, with.op, inputs, with.prescale, with.postscale));
    values.push_back(testing::encode(with.dtype, testing::small_numbers(with.dtype, member.rank(), counts[tensor])));
  }
  for (size_t tensor = 0; tensor < counts.size(); ++tensor) {
    if (with.is_present(member.rank(), tensor)) {
      job.pieces.push_back({values[tensor].data(), values[tensor].data(), counts[tensor]});
    } else {
      job.pieces.push_back({nullptr, nullptr, counts[tensor]});
    }
  }
  member.run(member.world, with.row, job);
  for (size_t tensor = 0; tensor < counts.size(); ++tensor) {
    if (with.is_present(member.rank(), tensor)) {
      ASSERT_TRUE(values[tensor] == expected[tensor])
          << with.row.algorithm->name << " of " << reduce::name_of(with.dtype) << ", " << reduce::name_of(with.op)
          << ", tensor " << tensor << " on rank " << member.rank();
    }
  }
}

class Absent : public testing::EveryWorld {};

TEST_P(Absent, AddsTheIdentityUnscaled) {
  if (size() == 1) {
    return;  // nobody would be left
  }
  run(4096, [&](Member& member) {
    const int last = member.size() - 1;
    const Presence presences[] = {
        [](int rank, size_t) { return rank != 0; }, [last](int rank, size_t) { return rank == last; },
        [last](int rank, size_t tensor) { return rank != static_cast<int>(tensor) % (last + 1); }};
    size_t turn = 0;
    for (const auto& row : member.rows_of("allreduce", member.world)) {
      for (const Dtype dtype : testing::kAllDtypes) {
        for (const Op op : testing::kAllOps) {
          // A small bucket, and one of several chunks; every case meets every kind of presence in some world.
          const Presence& presence = presences[(turn++ + static_cast<size_t>(last)) % std::size(presences)];
          ASSERT_NO_FATAL_FAILURE(check(member, {row, dtype, op, presence, {}, {}}, {3, 0, 40}));
          const size_t many = 10'001 / reduce::size_of(dtype);
          ASSERT_NO_FATAL_FAILURE(check(member, {row, dtype, op, presence, {2, 1}, {1, member.size()}}, {7, many, 1}));
        }
      }
    }
  });
}

TEST_P(Absent, SingleAbsentMemberDoesNothing) {
  run(4096, [&](Member& member) {
    const collective::Group alone = member.group_of(1, {member.rank()});
    AllreduceJob job;
    job.pieces.push_back({nullptr, nullptr, 5});
    member.run(alone, member.choose(Operation::kAllreduce, alone, 20), job);
  });
}

INSTANTIATE_TEST_SUITE_P(Backend, Absent, testing::every_world(), testing::name_of_world);

}  // namespace
}  // namespace farandole::collective
