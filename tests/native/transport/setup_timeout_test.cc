#include "transport/setup_timeout.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace farandole::transport {
namespace {

TEST(SetupTimeout, NamesRanksThatDidNotConnectAndWhy) {
  const base::Error error =
      missing_links(3, 0, {{.rank = 2, .refusal = Refusal::kOtherWorld}, {.rank = 5, .refusal = Refusal::kRubbish}});
  EXPECT_EQ(error.code(), base::Code::kTimeout);
  EXPECT_EQ(error.lost_rank(), 2);
  EXPECT_EQ(std::string(error.what()),
            "the world of generation 3 did not form in time: ranks 2, 5 did not connect to rank 0. Rank 2: it was told "
            "another list of workers than this one. Check that these workers run, and that their addresses can be "
            "reached from here");
}

TEST(SetupTimeout, NamesRanksThatDidNotReport) {
  const base::Error error = missing_reports(1, 0, {4});
  EXPECT_EQ(error.lost_rank(), 4);
  EXPECT_EQ(std::string(error.what()),
            "the world of generation 1 did not form in time: rank 4 did not report to rank 0 that all connections are "
            "made. Check that these workers run");
}

TEST(SetupTimeout, NamesRankThatDidNotAnswer) {
  const base::Error error = missing_answer(1, 5, 4);
  EXPECT_EQ(error.code(), base::Code::kTimeout);
  EXPECT_EQ(error.lost_rank(), 4);
  EXPECT_EQ(std::string(error.what()),
            "the world of generation 1 did not form in time: rank 4 did not tell rank 5 that all workers are "
            "connected. Check that it runs");
}

TEST(SetupTimeout, NamesRanksToWhichNoLateLinkCouldBeMade) {
  const std::vector<MissingRank> missing = {{.rank = 3}, {.rank = 9, .refusal = Refusal::kOtherGeneration}};
  EXPECT_EQ(missing_late_links(missing, 0.5),
            "ranks 3, 9 could not be reached within 0.5 s for a connection that is needed now. Rank 9: it is forming "
            "another generation. Check that these workers run, and that their addresses can be reached from the hosts "
            "of all others");
}

}  // namespace
}  // namespace farandole::transport
