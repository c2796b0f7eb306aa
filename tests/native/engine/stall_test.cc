// Ranks that others wait for: what the inspector finds, asks and says, and that engines answer and give up.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/stall.h"
#include "support/worlds.h"

namespace farandole {
namespace {

using base::Code;
using base::Error;
using engine::Coordinator;
using engine::Engine;
using engine::Kind;
using engine::StallInspector;
using testing::in_world;
using World = testing::Kind;
using Waiting = std::vector<Coordinator::Waiting>;

constexpr int64_t kSecond = 1'000'000'000;

Waiting for_rank_1(int64_t since_ns) { return {{0, "x", Kind::kAllreduce, since_ns, {1}}}; }

TEST(StallInspector, AsksThenWarnsThenWaitsForNextWarningTime) {
  StallInspector inspector(10, 0);
  EXPECT_EQ(inspector.next_ns(), 0);
  inspector.watch(5 * kSecond);
  EXPECT_EQ(inspector.next_ns(), 15 * kSecond);

  // The one that waits now came a little later than when the watch began.
  auto findings = inspector.inspect(15 * kSecond, for_rank_1(6 * kSecond));
  EXPECT_TRUE(findings.ask.empty());
  EXPECT_EQ(inspector.next_ns(), 16 * kSecond);

  findings = inspector.inspect(16 * kSecond, for_rank_1(6 * kSecond));
  EXPECT_EQ(findings.ask, (std::vector<int>{1}));
  EXPECT_TRUE(findings.warning.empty());
  EXPECT_EQ(inspector.next_ns(), 17 * kSecond);
  inspector.hear(1, {findings.query, false, "asked last for allreduce 'y' 9 s ago, which is done"});
  EXPECT_EQ(inspector.next_ns(), 17 * kSecond) << "the program has not answered yet";
  inspector.hear(1, {findings.query, true, "train.py:41 in step"});
  EXPECT_EQ(inspector.next_ns(), 16 * kSecond) << "all have answered: at once";

  findings = inspector.inspect(16 * kSecond, for_rank_1(6 * kSecond));
  EXPECT_NE(findings.warning.find("allreduce 'x', for 10 s: missing rank 1"), std::string::npos) << findings.warning;
  EXPECT_NE(findings.warning.find("rank 1: asked last for allreduce 'y' 9 s ago, which is done; it is at train.py:41"),
            std::string::npos)
      << findings.warning;
  EXPECT_TRUE(findings.end.empty());
  EXPECT_EQ(inspector.next_ns(), 26 * kSecond) << "not again before another warning time";
  EXPECT_EQ(inspector.inspect(26 * kSecond, for_rank_1(6 * kSecond)).ask, (std::vector<int>{1}));
}

TEST(StallInspector, WarnsAfterASecondWithoutAnswer) {
  StallInspector inspector(10, 0);
  inspector.watch(0);
  const auto query = inspector.inspect(10 * kSecond, for_rank_1(0));
  EXPECT_TRUE(inspector.inspect(10 * kSecond + 1, for_rank_1(0)).warning.empty());
  inspector.hear(1, {query.query + 1, true, "of a wrong query"});
  inspector.hear(0, {query.query, true, "of a rank that nobody asked"});
  const std::string warning = inspector.inspect(11 * kSecond, for_rank_1(0)).warning;
  EXPECT_NE(warning.find("rank 1: no answer"), std::string::npos) << warning;
  EXPECT_EQ(warning.find("wrong"), std::string::npos);
  EXPECT_EQ(warning.find("nobody"), std::string::npos);
}

TEST(StallInspector, ReportsNothingIfMissingRequestCame) {
  StallInspector inspector(10, 0);
  inspector.watch(0);
  EXPECT_FALSE(inspector.inspect(10 * kSecond, for_rank_1(0)).ask.empty());
  const auto findings = inspector.inspect(11 * kSecond, {});
  EXPECT_TRUE(findings.warning.empty());
  EXPECT_TRUE(findings.ask.empty());
  EXPECT_EQ(inspector.next_ns(), 0);
}

TEST(StallInspector, EndsWorldAfterShutdownTimeAlsoIfShorterThanWarningTime) {
  for (const double warning : {0.0, 2.0, 60.0}) {
    StallInspector inspector(warning, 5);
    Waiting waiting = for_rank_1(0);
    waiting.push_back({0, "young", Kind::kBroadcast, 4 * kSecond, {1, 2}});
    std::string end;
    inspector.watch(0);
    int64_t now = 0;
    while (end.empty()) {
      ASSERT_GT(inspector.next_ns(), now) << "time must go on";
      now = inspector.next_ns();
      ASSERT_LE(now, 6 * kSecond);
      const auto findings = inspector.inspect(now, waiting);
      end = findings.end;
      EXPECT_TRUE(end.empty() || (now >= 5 * kSecond && findings.responsible == std::vector<int>{1}));
      EXPECT_TRUE(end.empty() || !findings.warning.empty()) << "it ends with a last report";
    }
    EXPECT_NE(end.find("rank 1 did not ask for allreduce 'x'"), std::string::npos) << end;
  }
}

TEST(StallInspector, LongReportsAreCut) {
  StallInspector inspector(1, 2);
  Waiting waiting;
  for (int i = 0; i < 300; ++i) {
    waiting.push_back({0, std::string(500, 'n') + std::to_string(i), Kind::kAllreduce, 0, {i + 1}});
  }
  inspector.watch(0);
  inspector.inspect(2 * kSecond, waiting);
  const auto findings = inspector.inspect(3 * kSecond, waiting);
  EXPECT_NE(findings.warning.find("and 290 more"), std::string::npos);
  EXPECT_LT(findings.warning.size(), 10'000U);
  EXPECT_LT(findings.end.size(), 1000U) << "it travels in a control frame";
}

// --- engines ---------------------------------------------------------------------------------------------------------

class Stall : public ::testing::TestWithParam<World> {};

TEST_P(Stall, WorldEndsWithSameErrorOnAllRanks) {
  engine::EngineSettings settings;
  settings.stall_warning_seconds = 0;
  settings.stall_shutdown_seconds = 1;  // and as long for answers: a busy machine keeps nobody from asking until then
  std::atomic<int> ended{0};
  in_world(GetParam(), 3, settings, [&](int rank, Engine& engine) {
    ASSERT_EQ(testing::allreduce(engine, "x", {1.0F}), std::vector<float>{3.0F});
    // Rank 1 does not ask while the others wait.
    while (rank == 1 && ended < 2) {
      std::this_thread::yield();
    }
    try {
      testing::allreduce(engine, "the one", {1.0F});
      FAIL() << "it cannot have completed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kStalled) << error.what();
      EXPECT_EQ(error.lost_rank(), 1);
      EXPECT_NE(std::string(error.what()).find("rank 1 did not ask for allreduce 'the one'"), std::string::npos)
          << error.what();
    }
    ++ended;
  });
}

TEST_P(Stall, MissingRanksAreAskedAndAnswer) {
  engine::EngineSettings settings;
  settings.stall_warning_seconds = 0.1;
  std::atomic<bool> asked{false};
  in_world(GetParam(), 3, settings, [&](int rank, Engine& engine) {
    uint64_t query = 0;
    // The coordinator's own rank may be the one that is missing, as well as any other.
    for (const int missing : {2, 0}) {
      ASSERT_EQ(testing::allreduce(engine, "before", {1.0F}), std::vector<float>{3.0F});
      if (rank == missing) {
        ASSERT_EQ(engine.wait_stall_query(base::Deadline::after_seconds(testing::kPatience), query), 1);
        EXPECT_GT(query, 0U);
        engine.answer_stall_query(query, "somewhere\nelse");
        asked = true;
      }
      ASSERT_EQ(testing::allreduce(engine, "after", {1.0F}), std::vector<float>{3.0F});
    }
    // That nobody else is asked is shown above, by the inspector: here, any rank may be late and missing for a moment.
  });
  EXPECT_TRUE(asked);
}

// Not over loopback: there a revoked world is not passed on.
INSTANTIATE_TEST_SUITE_P(Engine, Stall, ::testing::Values(World::kShm, World::kTcp, World::kTwoHosts, World::kTree),
                         [](const auto& info) { return testing::name_of(info.param); });

// What was agreed on without messages is what a rank asked for last, all the same.
TEST(StallEngine, TheLastRequestMayHaveTakenTheFastPath) {
  engine::EngineSettings settings;
  settings.stall_warning_seconds = 0;
  settings.stall_shutdown_seconds = 1;  // and as long for answers: a busy machine keeps nobody from asking until then
  std::atomic<bool> ended{false};
  ::testing::internal::CaptureStderr();
  in_world(World::kShm, 2, settings, [&](int rank, Engine& engine) {
    float value = 1;
    for (int step = 0; step < 50; ++step) {
      const char* const name = step < 10 ? "first" : "last";
      testing::finish(
          engine,
          engine.submit({testing::allreduce_request(name, reduce::Dtype::kF32, {1}, &value, &value)}, true).front());
    }
    if (rank == 1) {
      while (!ended) {
        std::this_thread::yield();
      }
      return;
    }
    EXPECT_THROW(testing::allreduce(engine, "the one", {1.0F}), Error);
    ended = true;
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("rank 1: asked last for allreduce 'last' "), std::string::npos) << log;
}

TEST(StallEngine, WaitingForAQueryEndsWithTheWorld) {
  uint64_t query = 0;
  Engine alone({});
  EXPECT_EQ(alone.wait_stall_query(base::Deadline::after_seconds(testing::kPatience), query), -1);
  in_world(World::kLoopback, 2, {}, [](int rank, Engine& engine) {
    if (rank == 1) {
      return;  // leaves
    }
    uint64_t number = 0;
    EXPECT_EQ(engine.wait_stall_query(base::Deadline::after_seconds(testing::kPatience), number), -1);
  });
}

}  // namespace
}  // namespace farandole
