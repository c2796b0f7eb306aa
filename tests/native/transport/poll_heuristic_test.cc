// Waits that find what they wait for while they poll, and waits that do not.
#include "transport/poll_heuristic.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

using transport::PollHeuristic;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kOften = 1000;  // in a millisecond, on a core of its own
constexpr int64_t kSeldom = 5;
constexpr int kManyWaits = 2000;

constexpr uint32_t kBetweenTrials = 100;

void poll_in_vain(PollHeuristic& heuristic, int64_t looks) {
  if (heuristic.suggests_poll(kBetweenTrials)) {
    heuristic.gave_up(looks, kMs);
  }
}

// Waits for many decisions, and returns how often the heuristic suggested to poll. All polls find something, or none
// does.
int polls(PollHeuristic& heuristic, bool found, int64_t looks) {
  int suggested = 0;
  for (uint32_t decision = 1; decision <= kManyWaits; ++decision) {
    if (heuristic.suggests_poll(decision)) {
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

TEST(PollHeuristic, SeldomPollsIfEveryEighthPollIsInVain) {
  PollHeuristic heuristic;
  int suggested = 0;
  for (uint32_t decision = 1; decision <= kManyWaits; ++decision) {
    if (heuristic.suggests_poll(decision)) {
      ++suggested % 8 == 0 ? heuristic.gave_up(kSeldom, kMs) : heuristic.found();
    }
  }
  EXPECT_LT(suggested, kManyWaits / 10);
}

TEST(PollHeuristic, TriesAtTheSameDecisionsOnAllWorkers) {
  PollHeuristic one;
  PollHeuristic other;
  polls(one, /*found=*/false, kSeldom);
  for (int i = 0; i < 3; ++i) {
    poll_in_vain(other, kSeldom);
  }
  for (uint32_t decision = 1; decision <= kManyWaits; ++decision) {
    EXPECT_EQ(one.suggests_poll(decision), other.suggests_poll(decision)) << decision;
  }
}

TEST(PollHeuristic, ForgivesASingleLateWorker) {
  PollHeuristic heuristic;
  poll_in_vain(heuristic, kSeldom);
  EXPECT_EQ(polls(heuristic, /*found=*/true, kSeldom), kManyWaits);
}

}  // namespace
}  // namespace farandole
