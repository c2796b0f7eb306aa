// Users that wait for their requests at once, and users that stop doing so.
#include "engine/wake_heuristic.h"

#include <gtest/gtest.h>

#include <thread>

#include "support/worlds.h"

namespace farandole {
namespace {

using engine::Engine;
using engine::Handle;
using engine::WakeHeuristic;
using reduce::Dtype;
using testing::allreduce_request;
using testing::finish;
using World = testing::Kind;

constexpr int64_t kMs = 1'000'000;

constexpr Handle kIt = 7;
constexpr Handle kOther = 8;

bool wait(WakeHeuristic& heuristic, int64_t now, Handle handle = kIt) { return heuristic.wait(now, {&handle, 1}); }

// Submits and waits this number of times; returns how many times it was expected to wait.
int ask_and_wait(WakeHeuristic& heuristic, int times, int64_t& now) {
  int expected = 0;
  for (int i = 0; i < times; ++i) {
    expected += heuristic.submit(++now, kIt, 1) ? 1 : 0;
    wait(heuristic, ++now);
  }
  return expected;
}

TEST(WakeHeuristic, PredictsAfterManyImmediateWaits) {
  WakeHeuristic heuristic;
  int64_t now = kMs;
  EXPECT_EQ(ask_and_wait(heuristic, 16, now), 0);
  EXPECT_TRUE(heuristic.lasts(now));
  EXPECT_EQ(ask_and_wait(heuristic, 10, now), 10);
}

TEST(WakeHeuristic, ReportsWhenPredictionEnds) {
  WakeHeuristic heuristic;
  int64_t now = kMs;
  for (int i = 0; i < 40; ++i) {
    heuristic.submit(++now, kIt, 1);
    EXPECT_FALSE(wait(heuristic, ++now));
  }
  EXPECT_TRUE(heuristic.submit(now, kIt, 1));
  EXPECT_TRUE(wait(heuristic, now, kOther)) << "who waits for something else leaves the last thing alone";
  EXPECT_FALSE(heuristic.submit(now, kIt, 1));
  EXPECT_FALSE(wait(heuristic, now));
}

TEST(WakeHeuristic, EndsWithSeveralRequestsAtOnceOrSecondSubmitBeforeWait) {
  for (const size_t count : {size_t{2}, size_t{1}}) {
    WakeHeuristic heuristic;
    int64_t now = kMs;
    ask_and_wait(heuristic, 20, now);
    if (count == 1) {
      EXPECT_TRUE(heuristic.submit(++now, kIt, 1));
    }
    EXPECT_FALSE(heuristic.submit(++now, kIt, count));
    wait(heuristic, ++now);
    EXPECT_FALSE(heuristic.submit(++now, kIt, 1));
  }
}

TEST(WakeHeuristic, EndsWithLateWaitAndAfterIdleTime) {
  WakeHeuristic late;
  int64_t now = kMs;
  ask_and_wait(late, 20, now);
  EXPECT_TRUE(late.submit(++now, kIt, 1));
  wait(late, now + kMs);
  EXPECT_FALSE(late.submit(now + kMs + 1, kIt, 1));
  WakeHeuristic rare;
  ask_and_wait(rare, 20, now);
  EXPECT_FALSE(rare.lasts(now + 20 * kMs));
  EXPECT_FALSE(rare.submit(now + 20 * kMs, kIt, 1));
}

TEST(WakeHeuristic, PredictsAfterTwoImmediateWaitsIfItDidSoBeforePause) {
  WakeHeuristic heuristic;
  int64_t now = kMs;
  ask_and_wait(heuristic, 20, now);
  for (int pause = 0; pause < 3; ++pause) {
    now += 20 * kMs;
    EXPECT_EQ(ask_and_wait(heuristic, 2, now), 0) << "the engine thread sleeps until it is woken";
    EXPECT_TRUE(heuristic.lasts(now));
    EXPECT_EQ(ask_and_wait(heuristic, 10, now), 10);
  }
}

// The engine thread would wake up again and again until the prediction ends, and save nothing.
TEST(WakeHeuristic, DoesNotPredictForOneRequestAfterEachPause) {
  WakeHeuristic heuristic;
  int64_t now = kMs;
  ask_and_wait(heuristic, 20, now);
  for (int pause = 0; pause < 40; ++pause) {
    now += 20 * kMs;
    EXPECT_EQ(ask_and_wait(heuristic, 1, now), 0);
    EXPECT_FALSE(heuristic.lasts(now)) << "after " << pause << " pauses";
  }
}

TEST(WakeHeuristic, WrongPredictionIsNotMadeSoonerAfterPause) {
  WakeHeuristic heuristic;
  int64_t now = kMs;
  ask_and_wait(heuristic, 20, now);
  heuristic.lapse();
  now += 20 * kMs;
  EXPECT_EQ(ask_and_wait(heuristic, 16, now), 0);
  EXPECT_EQ(ask_and_wait(heuristic, 1, now), 1);
}

TEST(WakeHeuristic, EmptyWaitDoesNotCount) {
  WakeHeuristic heuristic;
  for (int64_t now = kMs; now < kMs + 40; ++now) {
    EXPECT_FALSE(wait(heuristic, now));
  }
  EXPECT_FALSE(heuristic.lasts(kMs + 40));
}

// Requests that are in flight when a user does something else are done all the same, and so are later ones.
TEST(WakeHeuristic, EngineThreadRunsRequestIfUserDoesNotWait) {
  for (const int size : {1, 2, 4}) {
    testing::in_world(World::kShm, size, {}, [size](int rank, Engine& engine) {
      for (int round = 0; round < 5; ++round) {
        for (int step = 0; step < 40; ++step) {
          auto value = static_cast<float>(rank + step);
          finish(engine, engine.submit({allreduce_request("at once", Dtype::kF32, {1}, &value, &value)}).front());
          ASSERT_EQ(value, static_cast<float>(size * step + testing::sum_of_ranks(size)));
        }
        float left_alone = 1;
        const Handle handle =
            engine.submit({allreduce_request("left alone", Dtype::kF32, {1}, &left_alone, &left_alone)}).front();
        testing::look_until_done(engine, handle);
        ASSERT_EQ(left_alone, static_cast<float>(size));
      }
    });
  }
}

}  // namespace
}  // namespace farandole
