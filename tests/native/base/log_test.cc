#include "base/log.h"

#include <gtest/gtest.h>

#include <string>

namespace farandole::base {
namespace {

class Log : public ::testing::Test {
 protected:
  void TearDown() override { set_log_level(Level::kWarning); }

  static std::string written(Level level, int rank) {
    ::testing::internal::CaptureStderr();
    log(level, rank, "the link is slow");
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(Log, SaysWhoAndHowBad) {
  EXPECT_EQ(written(Level::kWarning, 3), "farandole [rank 3] warning: the link is slow\n");
  EXPECT_EQ(written(Level::kError, 0), "farandole [rank 0] error: the link is slow\n");
  EXPECT_EQ(written(Level::kError, -1), "farandole error: the link is slow\n");
}

TEST_F(Log, IsSilentBelowItsLevel) {
  EXPECT_EQ(written(Level::kInfo, 0), "");
  set_log_level(Level::kDebug);
  EXPECT_EQ(written(Level::kDebug, 0), "farandole [rank 0] debug: the link is slow\n");
  EXPECT_EQ(written(Level::kInfo, 0), "farandole [rank 0] info: the link is slow\n");
  set_log_level(Level::kOff);
  EXPECT_EQ(written(Level::kError, 0), "");
}

}  // namespace
}  // namespace farandole::base
