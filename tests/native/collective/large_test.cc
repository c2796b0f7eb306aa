// Tensors of more than 2^31 elements: counts and offsets that do not fit into 32 bits with a sign.
//
// Takes most of a minute and 9 GB of memory, so it has to be asked for: FARANDOLE_LARGE_TESTS=1.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "collective/members.h"
#include "support/sanitized.h"

namespace farandole::collective {
namespace {

using reduce::Dtype;
using testing::Member;

constexpr size_t kCount = (size_t{1} << 31) + 4099;
constexpr double kLargePatience = 300;  // seconds

// What the two ranks' inputs and outputs take, and some room for everybody else.
constexpr size_t kNeededKilobytes = size_t{12} << 20;

size_t available_kilobytes() {
  std::ifstream info("/proc/meminfo");
  std::string name;
  size_t kilobytes = 0;
  std::string unit;
  while (info >> name >> kilobytes) {
    std::getline(info, unit);
    if (name == "MemAvailable:") {
      return kilobytes;
    }
  }
  return 0;
}

uint8_t value_at(int rank, size_t i) { return static_cast<uint8_t>((i ^ (i >> 13)) + static_cast<size_t>(rank) * 3); }

using Memory = std::unique_ptr<uint8_t[]>;

Memory filled(int rank) {
  auto memory = std::make_unique_for_overwrite<uint8_t[]>(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    memory[i] = value_at(rank, i);
  }
  return memory;
}

// Where `memory` first differs from what `expected(i)` gives for its elements [0, count); `count` if nowhere.
template <typename Expected>
size_t first_difference(const uint8_t* memory, size_t count, Expected&& expected) {
  size_t i = 0;
  while (i < count && memory[i] == expected(i)) {
    ++i;
  }
  return i;
}

uint8_t sum_at(size_t i) { return static_cast<uint8_t>(value_at(0, i) + value_at(1, i)); }

TEST(Large, CountsAboveThirtyOneBits) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "a sanitizer takes too much memory and time for this";
  }
  if (std::getenv("FARANDOLE_LARGE_TESTS") == nullptr) {
    GTEST_SKIP() << "set FARANDOLE_LARGE_TESTS=1 to run it";
  }
  if (available_kilobytes() < kNeededKilobytes) {
    GTEST_SKIP() << "needs 12 GB of memory";
  }
  const auto body = [](Member& member) {
    const int me = member.rank();
    const size_t shares[] = {kCount - kCount / 2, kCount / 2};
    {
      const Memory input = filled(me);
      auto part = std::make_unique_for_overwrite<uint8_t[]>(shares[me]);
      collective::ReducescatterJob job;
      job.dtype = Dtype::kU8;
      job.counts.assign(std::begin(shares), std::end(shares));
      job.input = input.get();
      job.output = part.get();
      member.run(member.world, member.choose(Operation::kReducescatter, member.world), job);
      const size_t before = me == 0 ? 0 : shares[0];
      EXPECT_EQ(first_difference(part.get(), shares[me], [&](size_t i) { return sum_at(before + i); }), shares[me]);
    }
    {
      const Memory input = filled(me);
      Memory output;
      collective::AlltoallJob job;
      job.input = input.get();
      job.row_bytes = 1;
      // Each gives the other everything.
      job.rows = me == 0 ? std::vector<int64_t>{0, kCount} : std::vector<int64_t>{kCount, 0};
      job.output = [&](const std::vector<int64_t>&) {
        output = std::make_unique_for_overwrite<uint8_t[]>(kCount);
        return output.get();
      };
      member.run(member.world, member.choose(Operation::kAlltoall, member.world), job);
      EXPECT_EQ(first_difference(output.get(), kCount, [&](size_t i) { return value_at(1 - me, i); }), kCount);
    }
    const Memory tensor = filled(me);
    collective::AllreduceJob job{Dtype::kU8, reduce::Op::kSum, {}, {}, {{tensor.get(), tensor.get(), kCount}}};
    member.run(member.world, member.choose(Operation::kAllreduce, member.world, kCount), job);
    EXPECT_EQ(first_difference(tensor.get(), kCount, sum_at), kCount);
    if (me == 1) {
      std::fill_n(tensor.get(), kCount, uint8_t{0});
    }
    collective::BroadcastJob transfer{tensor.get(), tensor.get(), kCount, 0};
    member.run(member.world, member.choose(Operation::kTransfer, member.world), transfer);
    EXPECT_EQ(first_difference(tensor.get(), kCount, sum_at), kCount);
  };
  testing::on_all_members(testing::Kind::kShm, 2, size_t{4} << 20, body, kLargePatience);
}

}  // namespace
}  // namespace farandole::collective
