// Waits that find what they wait for while they poll, and waits that do not.
#include "transport/poll_heuristic.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "support/patience.h"

namespace farandole {
namespace {

using transport::Poll;
using transport::PollHeuristic;

constexpr bool kShared = true;
constexpr bool kOwn = false;
constexpr int kManyWaits = 8000;

constexpr uint32_t kBetweenTrials = 100;

void poll_in_vain(PollHeuristic& heuristic, bool core) {
  if (heuristic.suggests_poll(kBetweenTrials)) {
    heuristic.gave_up(core);
  }
}

// Waits for many decisions, and returns how often the heuristic suggested to poll. All polls find something, or none
// does.
int polls(PollHeuristic& heuristic, bool found, bool core) {
  int suggested = 0;
  for (uint32_t decision = 1; decision <= kManyWaits; ++decision) {
    if (heuristic.suggests_poll(decision)) {
      ++suggested;
      found ? heuristic.found() : heuristic.gave_up(core);
    }
  }
  return suggested;
}

constexpr int64_t kPollNs = 100'000;
constexpr int kOften = 50;  // looks of a poll on a core of its own
constexpr int kSeldom = 5;

void look(Poll& poll, int looks) {
  for (int i = 0; i < looks; ++i) {
    poll.count(base::now_ns());
  }
}

TEST(Poll, SlowLooksAreThoseOfASharedCore) {
  Poll poll;
  look(poll, kSeldom);
  EXPECT_TRUE(poll.was_on_shared_core(kPollNs));
}

TEST(Poll, QuickLooksAreThoseOfACoreOfItsOwn) {
  for (;;) {
    const int64_t before = base::involuntary_switches();
    Poll poll;
    look(poll, kOften);
    const bool was_on_shared_core = poll.was_on_shared_core(kPollNs);
    if (base::involuntary_switches() == before) {  // no other program came in between
      EXPECT_FALSE(was_on_shared_core);
      return;
    }
  }
}

// Yields until another thread of the core has had it.
void leave_core() {
  const int64_t before = base::involuntary_switches();
  const auto deadline = base::Deadline::after_seconds(testing::kPatience);
  while (base::involuntary_switches() == before && !deadline.passed()) {
    ::sched_yield();
  }
}

TEST(Poll, QuickLooksAreThoseOfASharedCoreIfTheThreadHadToLeaveIt) {
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(::sched_getcpu(), &one);
    ::sched_setaffinity(0, sizeof one, &one);
    std::atomic<bool> ends = false;
    std::thread other([&ends] {  // on the same core
      while (!ends) {
      }
    });
    Poll poll;
    look(poll, kOften);
    leave_core();
    look(poll, kOften);
    EXPECT_TRUE(poll.was_on_shared_core(kPollNs));
    ends = true;
    other.join();
  }).join();
}

TEST(PollHeuristic, PollsWhileItFindsSomething) {
  PollHeuristic heuristic;
  EXPECT_EQ(polls(heuristic, /*found=*/true, kShared), kManyWaits);
}

TEST(PollHeuristic, PollsOnACoreOfItsOwnAlthoughInVain) {
  PollHeuristic heuristic;
  EXPECT_EQ(polls(heuristic, /*found=*/false, kOwn), kManyWaits);
}

TEST(PollHeuristic, SeldomPollsInVainOnASharedCore) {
  PollHeuristic heuristic;
  const int suggested = polls(heuristic, /*found=*/false, kShared);
  EXPECT_GT(suggested, 2);  // it goes on to try
  EXPECT_LT(suggested, kManyWaits / 20);
}

TEST(PollHeuristic, PollsAgainSoonAfterItPays) {
  PollHeuristic heuristic;
  polls(heuristic, /*found=*/false, kShared);
  EXPECT_GT(polls(heuristic, /*found=*/true, kShared), kManyWaits / 2);
}

TEST(PollHeuristic, SeldomPollsIfEveryEighthPollIsInVain) {
  PollHeuristic heuristic;
  int suggested = 0;
  for (uint32_t decision = 1; decision <= kManyWaits; ++decision) {
    if (heuristic.suggests_poll(decision)) {
      ++suggested % 8 == 0 ? heuristic.gave_up(kShared) : heuristic.found();
    }
  }
  EXPECT_LT(suggested, kManyWaits / 10);
}

TEST(PollHeuristic, TriesAtTheSameDecisionsOnAllWorkers) {
  PollHeuristic one;
  PollHeuristic other;
  polls(one, /*found=*/false, kShared);
  for (int i = 0; i < 3; ++i) {
    poll_in_vain(other, kShared);
  }
  for (uint32_t decision = 1; decision <= kManyWaits; ++decision) {
    EXPECT_EQ(one.suggests_poll(decision), other.suggests_poll(decision)) << decision;
  }
}

TEST(PollHeuristic, ForgivesASingleLateWorker) {
  PollHeuristic heuristic;
  poll_in_vain(heuristic, kShared);
  EXPECT_EQ(polls(heuristic, /*found=*/true, kShared), kManyWaits);
}

}  // namespace
}  // namespace farandole
