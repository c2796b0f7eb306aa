#include "transport/start_graph.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace farandole::transport {
namespace {

std::vector<int> hosts_of_eight(int size) {
  std::vector<int> hosts(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    hosts[static_cast<size_t>(rank)] = rank / 8 * 8;
  }
  return hosts;
}

TEST(StartGraph, LinksAllToAllInSmallWorlds) {
  for (const int size : {1, 2, 3, 64}) {
    std::vector<int> all(static_cast<size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    std::erase(all, size / 2);
    EXPECT_EQ(start_peers(size / 2, hosts_of_eight(size)), all);
  }
}

TEST(StartGraph, LinksPowersOfTwoAndTheHostInLargeWorlds) {
  EXPECT_EQ(start_peers(10, hosts_of_eight(100)), std::vector({2, 6, 8, 9, 11, 12, 13, 14, 15, 18, 26, 42, 78, 94}));
}

TEST(StartGraph, IsSymmetric) {
  for (const int size : {65, 100, 128, 200}) {
    const std::vector<int> hosts = hosts_of_eight(size);
    std::set<std::pair<int, int>> links;
    for (int rank = 0; rank < size; ++rank) {
      for (const int peer : start_peers(rank, hosts)) {
        links.emplace(rank, peer);
      }
    }
    for (const auto& [rank, peer] : links) {
      EXPECT_TRUE(links.contains({peer, rank})) << rank << " and " << peer << " of " << size;
    }
  }
}

TEST(StartGraph, TreeUsesTheseLinksAndIsNoDeeperThanItSays) {
  std::vector<int> sizes = {2, 3, 8, 64, 1'000, 1'024, 10'240};
  for (int size = 65; size < 300; ++size) {
    sizes.push_back(size);
  }
  for (const int size : sizes) {
    for (int rank = 1; rank < size; ++rank) {
      const int parent = start_parent(rank, size);
      ASSERT_GE(parent, 0);
      ASSERT_LT(parent, rank);
      ASSERT_TRUE(tell_each_other(rank, parent, size)) << rank << " and " << parent << " of " << size;
      ASSERT_EQ(start_depth(rank, size), 1 + start_depth(parent, size));
      ASSERT_LE(start_depth(rank, size), deepest_start(size));
    }
  }
  EXPECT_EQ(start_depth(0, 100), 0);
}

}  // namespace
}  // namespace farandole::transport
