#include "transport/setup_timeout.h"

#include <gtest/gtest.h>

#include <string>

namespace farandole::transport {
namespace {

TEST(SetupTimeout, NamesMissingRanksAndTheirProgress) {
  const base::Error error = setup_timeout(3, 0,
                                          {{.rank = 1, .linked = true, .refusal = Refusal::kSecret},
                                           {.rank = 2, .linked = false, .refusal = Refusal::kOtherWorld},
                                           {.rank = 5, .linked = false, .refusal = Refusal::kRubbish}});
  EXPECT_EQ(error.code(), base::Code::kTimeout);
  EXPECT_EQ(error.lost_rank(), 2);
  EXPECT_EQ(std::string(error.what()),
            "the world of generation 3 did not form in time: ranks 2, 5 did not connect to rank 0. Rank 2: it was told "
            "another list of workers than this one. Check that these workers run, and that their addresses can be "
            "reached from here");
}

TEST(SetupTimeout, NamesWaitingRanksIfAllAreLinkedHere) {
  const base::Error error = setup_timeout(1, 0, {{.rank = 4, .linked = true}});
  EXPECT_EQ(error.lost_rank(), 4);
  EXPECT_EQ(std::string(error.what()),
            "the world of generation 1 did not form in time: rank 4 could not connect to all others");
}

}  // namespace
}  // namespace farandole::transport
