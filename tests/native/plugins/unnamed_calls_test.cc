// The numbers of unnamed calls, of which some are refused while others are being made.
#include "plugins/unnamed_calls.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

using plugins::UnnamedCalls;

TEST(UnnamedCalls, RefusedCallGivesBackItsOwnNumberWhileOthersGoOn) {
  UnnamedCalls calls;
  const UnnamedCalls::Taken refused = calls.take("allreduce", 0);
  EXPECT_EQ(refused.number, 0U);
  EXPECT_EQ(calls.take("allreduce", 0).number, 1U) << "of another thread, and accepted";
  calls.give_back(refused);
  EXPECT_EQ(calls.take("allreduce", 0).number, 0U);
  EXPECT_EQ(calls.take("allreduce", 0).number, 2U);
}

TEST(UnnamedCalls, EachOperationInEachGroupIsCountedSeparately) {
  UnnamedCalls calls;
  calls.take("allreduce", 0);
  EXPECT_EQ(calls.take("allreduce", 1).number, 0U);
  EXPECT_EQ(calls.take("broadcast", 0).number, 0U);
  calls.restart_group(0);
  EXPECT_EQ(calls.take("allreduce", 0).number, 0U);
  EXPECT_EQ(calls.take("allreduce", 1).number, 1U);
}

TEST(UnnamedCalls, NumberOfBeforeARestartIsNotUsedAfterIt) {
  UnnamedCalls calls;
  for (int i = 0; i < 3; ++i) {
    calls.take("allreduce", 0);
  }
  const UnnamedCalls::Taken refused = calls.take("allreduce", 0);
  calls.restart_once_more();
  calls.give_back(refused);
  const UnnamedCalls::Taken first = calls.take("allreduce", 0);
  EXPECT_EQ(first.number, 0U);
  EXPECT_EQ(first.restarts, 1U);
  EXPECT_EQ(calls.take("allreduce", 0).number, 1U);
  calls.restart(0);
  EXPECT_EQ(calls.take("allreduce", 0).restarts, 0U);
}

}  // namespace
}  // namespace farandole
