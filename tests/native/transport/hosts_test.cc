#include "transport/hosts.h"

#include <gtest/gtest.h>

namespace farandole::transport {
namespace {

Sharing sharing_of(const std::vector<int>& hosts) {
  Sharing shares(hosts.size(), std::vector<bool>(hosts.size()));
  for (size_t a = 0; a < hosts.size(); ++a) {
    for (size_t b = 0; b < hosts.size(); ++b) {
      shares[a][b] = hosts[a] == hosts[b];
    }
  }
  return shares;
}

TEST(HostsTest, AreNamedAfterTheirLowestRank) {
  EXPECT_EQ(group_hosts(sharing_of({5})), std::vector<int>({0}));
  EXPECT_EQ(group_hosts(sharing_of({0, 0, 0})), std::vector<int>({0, 0, 0}));
  EXPECT_EQ(group_hosts(sharing_of({3, 1, 3, 1, 2})), std::vector<int>({0, 1, 0, 1, 4}));
}

TEST(HostsTest, AllRanksOfHostShareMemoryWithEachOther) {
  Sharing shares = sharing_of({0, 0, 0, 0});
  shares[0][2] = shares[2][0] = false;
  EXPECT_EQ(group_hosts(shares), std::vector<int>({0, 0, 2, 0}));
  shares[1][3] = false;  // one side is enough
  EXPECT_EQ(group_hosts(shares), std::vector<int>({0, 0, 2, 2}));
}

// One search for a rank looks at no host further than at the first member that does not share.
TEST(HostsTest, LargeWorldTakesFewComparisons) {
  std::vector<int> expected(4096);
  for (size_t rank = 0; rank < expected.size(); ++rank) {
    expected[rank] = static_cast<int>(rank % 512);
  }
  EXPECT_EQ(group_hosts(sharing_of(expected)), expected);
}

TEST(HostsTest, RowsAreSameAfterParsing) {
  for (const size_t size : {1u, 7u, 8u, 9u, 64u}) {
    std::vector<bool> row(size);
    for (size_t i = 0; i < size; i += 3) {
      row[i] = true;
    }
    EXPECT_EQ(unpack_row(pack_row(row), static_cast<int>(size)), row);
  }
  EXPECT_EQ(unpack_row("", 3), std::vector<bool>(3));
  EXPECT_EQ(unpack_row("\xff\xff", 3), std::vector<bool>(3));
}

}  // namespace
}  // namespace farandole::transport
