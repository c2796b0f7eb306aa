#include "transport/hosts.h"

#include <gtest/gtest.h>

#include "transport/host_key.h"

namespace farandole::transport {
namespace {

Contact contact(const std::string& host_key, bool shares_memory = true) {
  Contact contact;
  contact.host_key = host_key;
  contact.unix_name = shares_memory ? "name" : "";
  return contact;
}

TEST(Hosts, AreNamedAfterTheirLowestRank) {
  EXPECT_EQ(hosts_of(std::vector{contact("a")}), std::vector({0}));
  EXPECT_EQ(hosts_of(std::vector{contact("a"), contact("a"), contact("a")}), std::vector({0, 0, 0}));
  EXPECT_EQ(hosts_of(std::vector{contact("b"), contact("a"), contact("b"), contact("a"), contact("c")}),
            std::vector({0, 1, 0, 1, 4}));
}

TEST(Hosts, WorkerThatSharesNoMemoryIsAlone) {
  EXPECT_EQ(hosts_of(std::vector{contact("a", false), contact("a"), contact("a", false), contact("a")}),
            std::vector({0, 1, 2, 1}));
}

TEST(HostCorrections, AreSameAfterParsing) {
  const HostCorrections corrections = {{3, 3}, {8, 8}, {9, 8}, {10, 8}, {12, 8}, {13, 13}};
  EXPECT_EQ(to_text(corrections), "3:3,8-10:8,12:8,13:13");
  EXPECT_EQ(parse_host_corrections(to_text(corrections), 14), corrections);
  EXPECT_EQ(parse_host_corrections("", 1), HostCorrections());
}

TEST(HostCorrections, RubbishIsNone) {
  for (const char* const text : {"3", "3:", ":3", "3:4", "5-3:1", "3-:1", "-3:1", "14:1", "3-14:1", "3:1,", ",3:1",
                                 "3:1;4:1", "x", "3:-1", "99999999999:0", " 3:1"}) {
    EXPECT_FALSE(parse_host_corrections(text, 14)) << text;
  }
}

TEST(HostKey, IsSameForAllWorkersHereUnlessTheyAreToldOtherwise) {
  EXPECT_EQ(make_host_key(""), make_host_key(""));
  EXPECT_EQ(make_host_key("a"), make_host_key("a"));
  EXPECT_NE(make_host_key("a"), make_host_key("b"));
  EXPECT_NE(make_host_key("a"), make_host_key(""));
}

}  // namespace
}  // namespace farandole::transport
