// Which worlds agree over a tree, and which links it has.
#include "engine/agreement_tree.h"

#include <gtest/gtest.h>

namespace farandole::engine {
namespace {

// Of this many hosts, each with as many ranks.
std::vector<int> hosts_of(int hosts, int ranks_per_host) {
  std::vector<int> of_ranks;
  for (int rank = 0; rank < hosts * ranks_per_host; ++rank) {
    of_ranks.push_back(rank / ranks_per_host * ranks_per_host);
  }
  return of_ranks;
}

TEST(ChooseFanout, UpToEightHostsAreStarAndMoreAreTreeOfSixteen) {
  for (const int ranks_per_host : {1, 2, 8}) {
    EXPECT_EQ(choose_fanout(hosts_of(1, ranks_per_host), {}), 0);
    EXPECT_EQ(choose_fanout(hosts_of(8, ranks_per_host), {}), 0);
    EXPECT_EQ(choose_fanout(hosts_of(9, ranks_per_host), {}), 16);
    EXPECT_EQ(choose_fanout(hosts_of(1'000, ranks_per_host), {}), 16);
  }
}

TEST(ChooseFanout, HostsAreCountedWhateverTheOrderOfTheirRanks) {
  std::vector<int> hosts;
  for (int rank = 0; rank < 40; ++rank) {
    hosts.push_back(rank % 8);
  }
  EXPECT_EQ(choose_fanout(hosts, {}), 0);
  hosts.push_back(40);
  EXPECT_EQ(choose_fanout(hosts, {}), 16);
}

TEST(ChooseFanout, NumberThatIsSetCountsForEveryWorld) {
  for (const int hosts : {1, 8, 9, 100}) {
    EXPECT_EQ(choose_fanout(hosts_of(hosts, 2), 0), 0);
    EXPECT_EQ(choose_fanout(hosts_of(hosts, 2), 3), 3);
  }
}

TEST(AgreementTree, LeadersHaveTheirHostAndUpToSixteenHostsBelow) {
  const std::vector<int> hosts = hosts_of(40, 2);
  const AgreementTree root(0, hosts, choose_fanout(hosts, {}));
  EXPECT_EQ(root.fanout(), 16);
  ASSERT_EQ(root.children().size(), 17U);
  EXPECT_EQ(root.children().front(), 1);
  EXPECT_EQ(root.children().back(), 32);
  const AgreementTree leader(2, hosts, 16);
  ASSERT_EQ(leader.children().size(), 17U);
  EXPECT_EQ(leader.children().front(), 3);
  EXPECT_EQ(leader.children()[1], 34);
  EXPECT_EQ(AgreementTree(4, hosts, 16).children().back(), 78);
}

}  // namespace
}  // namespace farandole::engine
