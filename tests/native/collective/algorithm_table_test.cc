#include "collective/algorithm_table.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/error.h"

namespace farandole::collective {
namespace {

constexpr size_t kSmall = 1000;
constexpr size_t kBig = Knobs{}.ring_bytes;

std::string name(const Choice& choice) { return choice.algorithm->name; }

TEST(Table, NamesAreUniqueWithinACollectiveAndRowsComplete) {
  std::set<std::string> names;
  for (const Algorithm& row : algorithms()) {
    EXPECT_TRUE(names.insert(std::string(row.collective) + "/" + row.name).second);
    EXPECT_NE(row.run, nullptr);
    EXPECT_NE(std::string(row.description), "");
  }
}

TEST(Table, AnAbsentRowIsAnErrorThatNamesTheOthers) {
  try {
    choose_compressed("int7");
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
  EXPECT_EQ(name(choose_allreduce(one_host, kSmall, Knobs{}, "")), "direct");
  EXPECT_EQ(name(choose_allreduce(one_host, kBig, Knobs{}, "")), "direct");
  EXPECT_EQ(name(choose_allreduce(scattered, kSmall, Knobs{}, "")), "exchange");
  EXPECT_EQ(name(choose_allreduce(scattered, kBig, Knobs{}, "")), "exchange");
  EXPECT_EQ(name(choose_allreduce(uneven, kBig, Knobs{}, "")), "exchange");
  EXPECT_EQ(name(choose_allreduce(many, kSmall, Knobs{}, "")), "recursive_doubling");
  EXPECT_EQ(name(choose_allreduce(many, kBig, Knobs{}, "")), "exchange");
  EXPECT_EQ(name(choose_allreduce(two_by_two, kSmall, Knobs{}, "")), "two_level");
  EXPECT_EQ(name(choose_allreduce(two_by_two, kBig, Knobs{}, "")), "two_level");
  EXPECT_EQ(name(choose_allgather(one_host, "")), "direct");
  EXPECT_EQ(name(choose_allgather(uneven, "")), "linear");
  EXPECT_EQ(name(choose_broadcast(one_host, "")), "direct");
  EXPECT_EQ(name(choose_broadcast(scattered, "")), "tree");
  EXPECT_EQ(name(choose_alltoall(one_host, "")), "direct");
  EXPECT_EQ(name(choose_alltoall(two_by_two, "")), "pairwise");
  EXPECT_EQ(name(choose_reducescatter(one_host, "")), "direct");
  EXPECT_EQ(name(choose_reducescatter(uneven, "")), "exchange");
  EXPECT_EQ(name(choose_adasum()), "vector_halving");
}

TEST(Choice, TakesWhatIsAskedForWhereItFits) {
  EXPECT_EQ(name(choose_allreduce({4, 1, 4}, kSmall, Knobs{}, "ring")), "ring");
  EXPECT_EQ(name(choose_allreduce({4, 4, 1}, kSmall, Knobs{}, "direct")), "exchange") << "they share no memory";
  EXPECT_EQ(name(choose_broadcast({4, 1, 4}, "tree")), "tree");
  EXPECT_EQ(name(choose_allgather({4, 1, 4}, "tree")), "direct") << "no such allgather";
}

TEST(Choice, ATransferTakesNoStepsWhateverIsAskedFor) {
  // Only links: the other members of the group would count other steps than the two that take part.
  EXPECT_EQ(name(choose_transfer()), "tree");
  EXPECT_EQ(std::string(choose_transfer().algorithm->collective), "broadcast");
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

}  // namespace
}  // namespace farandole::collective
