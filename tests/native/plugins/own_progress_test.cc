// Attempts that save time, and attempts that do not.
#include "plugins/own_progress.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

using plugins::OwnProgress;
using std::chrono::milliseconds;

constexpr OwnProgress::Clock::time_point kBegin{std::chrono::hours(1)};

// How long the pause is after another attempt of a millisecond that was in vain.
milliseconds pause_after_one_in_vain(OwnProgress& progress) {
  progress.attempted(/*done=*/false, kBegin, milliseconds(1));
  milliseconds pause{0};
  while (!progress.is_worth_it(kBegin + pause)) {
    ++pause;
  }
  return pause;
}

TEST(OwnProgress, PausesAfterTwoFailedAttemptsInARow) {
  OwnProgress progress;
  EXPECT_TRUE(progress.is_worth_it(kBegin));
  EXPECT_EQ(pause_after_one_in_vain(progress), milliseconds(0));
  progress.attempted(/*done=*/true, kBegin, milliseconds(1));
  EXPECT_EQ(pause_after_one_in_vain(progress), milliseconds(0)) << "the one before has succeeded";
  EXPECT_EQ(pause_after_one_in_vain(progress), milliseconds(10));
}

TEST(OwnProgress, PausesGrowToALimitAndEndWithASuccess) {
  OwnProgress progress;
  pause_after_one_in_vain(progress);
  for (const int expected : {10, 20, 40, 80, 160, 320, 640, 640}) {
    EXPECT_EQ(pause_after_one_in_vain(progress), milliseconds(expected));
  }
  progress.attempted(/*done=*/true, kBegin, milliseconds(1));
  progress.attempted(/*done=*/false, kBegin + milliseconds(640), milliseconds(1));
  EXPECT_TRUE(progress.is_worth_it(kBegin + milliseconds(640)));
}

}  // namespace
}  // namespace farandole
