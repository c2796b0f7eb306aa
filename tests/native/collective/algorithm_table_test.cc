#include "collective/algorithm_table.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/error.h"

namespace farandole::collective {
namespace {

constexpr size_t kSmall = 1000;
constexpr size_t kBig = Knobs{}.ring_bytes;

std::string chosen(Operation operation, const Topology& topology, size_t bytes = kSmall, std::string_view wanted = "") {
  return choose(operation, topology, bytes, Knobs{}, wanted).algorithm->name;
}

TEST(Table, NamesAreUniqueWithinACollectiveAndRowsComplete) {
  std::set<std::string> names;
  for (const Algorithm& row : algorithms()) {
    EXPECT_TRUE(names.insert(std::string(row.collective) + "/" + row.name).second);
    EXPECT_NE(row.run, nullptr);
    EXPECT_NE(std::string(row.description), "");
  }
}

TEST(Table, UnknownAlgorithmIsAnErrorThatNamesTheOthers) {
  try {
    choose(Operation::kCompressedAllreduce, {4, 1, 4}, kSmall, Knobs{}, "int7");
    FAIL() << "there is no such row";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kInvalidArgument);
    EXPECT_STREQ(error.what(), "there is no algorithm 'int7' for compressed allreduce; there are: int8, topk");
  }
}

TEST(Choice, DependsOnWorldAndTensorOnly) {
  const Topology one_host{4, 1, 4};
  const Topology scattered{4, 4, 1};
  const Topology uneven{3, 2, 1};
  const Topology many{16, 16, 1};
  const Topology two_by_two{4, 2, 2};
  EXPECT_EQ(chosen(Operation::kAllreduce, one_host), "direct");
  EXPECT_EQ(chosen(Operation::kAllreduce, one_host, kBig), "direct");
  EXPECT_EQ(chosen(Operation::kAllreduce, scattered), "exchange");
  EXPECT_EQ(chosen(Operation::kAllreduce, scattered, kBig), "exchange");
  EXPECT_EQ(chosen(Operation::kAllreduce, uneven, kBig), "exchange");
  EXPECT_EQ(chosen(Operation::kAllreduce, many), "recursive_doubling");
  EXPECT_EQ(chosen(Operation::kAllreduce, many, kBig), "exchange");
  EXPECT_EQ(chosen(Operation::kAllreduce, two_by_two), "two_level");
  EXPECT_EQ(chosen(Operation::kAllreduce, two_by_two, kBig), "two_level");
  EXPECT_EQ(chosen(Operation::kAllgather, one_host), "direct");
  EXPECT_EQ(chosen(Operation::kAllgather, uneven), "linear");
  EXPECT_EQ(chosen(Operation::kBroadcast, one_host), "direct");
  EXPECT_EQ(chosen(Operation::kBroadcast, scattered), "tree");
  EXPECT_EQ(chosen(Operation::kAlltoall, one_host), "direct");
  EXPECT_EQ(chosen(Operation::kAlltoall, two_by_two), "pairwise");
  EXPECT_EQ(chosen(Operation::kReducescatter, one_host), "direct");
  EXPECT_EQ(chosen(Operation::kReducescatter, uneven), "exchange");
  EXPECT_EQ(chosen(Operation::kAdasum, one_host), "vector_halving");
}

TEST(Choice, TakesRequestedAlgorithmIfItFits) {
  EXPECT_EQ(chosen(Operation::kAllreduce, {4, 1, 4}, kSmall, "ring"), "ring");
  EXPECT_EQ(chosen(Operation::kAllreduce, {4, 4, 1}, kSmall, "direct"), "exchange") << "they share no memory";
  EXPECT_EQ(chosen(Operation::kBroadcast, {4, 1, 4}, kSmall, "tree"), "tree");
  EXPECT_EQ(chosen(Operation::kAllgather, {4, 1, 4}, kSmall, "tree"), "direct") << "no such allgather";
}

TEST(Choice, TransferNeverAdvancesSequence) {
  // Only links: the other members of the group would count other steps than the two that take part.
  const Choice choice = choose(Operation::kTransfer, {4, 1, 4}, kSmall, Knobs{}, "direct");
  EXPECT_STREQ(choice.algorithm->name, "tree");
  EXPECT_STREQ(choice.algorithm->collective, "broadcast");
}

TEST(Topology, CountsHostsAndTheirMembers) {
  const std::vector<int> hosts = {0, 0, 2, 0, 2, 5};
  const Group group{1, {0, 1, 2, 4}, 2};
  const Topology topology = topology_of(group, hosts);
  EXPECT_EQ(topology.members, 4);
  EXPECT_EQ(topology.hosts, 2);
  EXPECT_EQ(topology.fewest_on_a_host, 2);
  EXPECT_EQ(members_on_host(group, hosts, 2), (std::vector<int>{2, 4}));
  EXPECT_EQ(group.index_of(4), 3);
  EXPECT_EQ(group.index_of(3), -1);
  EXPECT_FALSE(group.contains(5));
}

TEST(Topology, MemoFollowsGroupsOfOneNumber) {
  const std::vector<int> hosts = {0, 0, 2, 0, 2, 5};
  TopologyMemo memo;
  EXPECT_EQ(memo.of({1, {0, 1, 3}, 0}, hosts).hosts, 1);
  EXPECT_EQ(memo.of({1, {0, 1, 3}, 2}, hosts).members, 3);
  EXPECT_EQ(memo.of({1, {0, 1, 5}, 0}, hosts).hosts, 2) << "the first one was removed, and its number given out again";
  EXPECT_EQ(memo.of({1, {0, 1, 3}, 0}, hosts).hosts, 1);
}

}  // namespace
}  // namespace farandole::collective
