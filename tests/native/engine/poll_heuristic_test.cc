// Waits that find what they wait for while they poll, and waits that do not.
#include "engine/poll_heuristic.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

using engine::PollHeuristic;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kOften = 1000;  // in a millisecond, on a core of its own
constexpr int64_t kSeldom = 5;
constexpr int kManyWaits = 1000;

void poll_in_vain(PollHeuristic& heuristic, int64_t looks) {
  if (heuristic.suggests_poll()) {
    heuristic.gave_up(looks, kMs);
  }
}

// Waits often, and returns how often the heuristic suggested to poll. All polls find something, or none does.
int polls(PollHeuristic& heuristic, bool found, int64_t looks) {
  int suggested = 0;
  for (int i = 0; i < kManyWaits; ++i) {
    if (heuristic.suggests_poll()) {
      ++suggested;
      found ? heuristic.found() : heuristic.gave_up(looks, kMs);
    }
  }
  return suggested;
}

TEST(PollHeuristic, PollsWhileItFindsSomething) {
  PollHeuristic heuristic;
  EXPECT_EQ(polls(heuristic, /*found=*/true, kSeldom), kManyWaits);
}

TEST(PollHeuristic, PollsOnACoreOfItsOwnAlthoughInVain) {
  PollHeuristic heuristic;
  EXPECT_EQ(polls(heuristic, /*found=*/false, kOften), kManyWaits);
}

TEST(PollHeuristic, SeldomPollsInVainOnASharedCore) {
  PollHeuristic heuristic;
  const int suggested = polls(heuristic, /*found=*/false, kSeldom);
  EXPECT_GT(suggested, 2);  // it goes on to try
  EXPECT_LT(suggested, kManyWaits / 20);
}

TEST(PollHeuristic, PollsAgainSoonAfterItPays) {
  PollHeuristic heuristic;
  polls(heuristic, /*found=*/false, kSeldom);
  EXPECT_GT(polls(heuristic, /*found=*/true, kSeldom), kManyWaits / 2);
}

TEST(PollHeuristic, SeldomPollsIfEverySecondPollIsInVain) {
  PollHeuristic heuristic;
  int suggested = 0;
  for (int i = 0; i < kManyWaits; ++i) {
    if (heuristic.suggests_poll()) {
      ++suggested % 2 == 0 ? heuristic.found() : heuristic.gave_up(kSeldom, kMs);
    }
  }
  EXPECT_LT(suggested, kManyWaits / 20);
}

TEST(PollHeuristic, ForgivesASingleLateWorker) {
  PollHeuristic heuristic;
  poll_in_vain(heuristic, kSeldom);
  EXPECT_EQ(polls(heuristic, /*found=*/true, kSeldom), kManyWaits);
}

}  // namespace
}  // namespace farandole
