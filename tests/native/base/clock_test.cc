#include "base/clock.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <limits>

namespace farandole::base {
namespace {

TEST(Now, DoesNotGoBack) {
  int64_t before = now_ns();
  for (int i = 0; i < 1000; ++i) {
    const int64_t after = now_ns();
    ASSERT_GE(after, before);
    before = after;
  }
}

TEST(Deadline, ZeroSecondsHavePassed) {
  for (const double seconds : {0.0, -1.0, -std::numeric_limits<double>::infinity()}) {
    const Deadline deadline = Deadline::after_seconds(seconds);
    EXPECT_TRUE(deadline.passed());
    EXPECT_EQ(deadline.left_ns(), 0);
    EXPECT_EQ(deadline.left_ms(), 0);
  }
}

TEST(Deadline, CountsDown) {
  const Deadline deadline = Deadline::after_seconds(1000);
  const int64_t left = deadline.left_ns();
  EXPECT_FALSE(deadline.passed());
  EXPECT_LE(left, int64_t{1'000'000'000'000});
  EXPECT_GT(left, int64_t{900'000'000'000});
  EXPECT_LE(deadline.left_ns(), left);
  EXPECT_LE(deadline.left_ms(), 1'000'000);
  EXPECT_GT(deadline.left_ms(), 900'000);
}

// Centuries and infinity stand for "never": neither the nanoseconds nor poll's int overflow.
TEST(Deadline, FarAwayDoesNotOverflow) {
  for (const double seconds : {1e9, 1e18, std::numeric_limits<double>::infinity()}) {
    const Deadline deadline = Deadline::after_seconds(seconds);
    EXPECT_FALSE(deadline.passed());
    EXPECT_GT(deadline.left_ns(), int64_t{900'000'000} * 1'000'000'000);
    EXPECT_GT(deadline.left_ms(), 0);
  }
}

TEST(Deadline, NanHasPassed) {
  EXPECT_TRUE(Deadline::after_seconds(std::numeric_limits<double>::quiet_NaN()).passed());
}

// Rounded down, the last wait would be of 0 ms, and the caller would spin until the deadline.
TEST(Deadline, HasPassedAfterWaitingForRemainingTime) {
  for (const double seconds : {0.0004, 0.0017, 0.003}) {
    const Deadline deadline = Deadline::after_seconds(seconds);
    ::poll(nullptr, 0, deadline.left_ms());
    EXPECT_TRUE(deadline.passed()) << seconds;
  }
}

}  // namespace
}  // namespace farandole::base
