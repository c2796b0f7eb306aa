// What the watch decides, without threads, sockets and clock: times are plain numbers.
#include "transport/watch_core.h"

#include <gtest/gtest.h>

namespace farandole::transport {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr double kDeadlineSeconds = 1.0;
constexpr int64_t kDeadline = 1'000 * kMs;
// How long a cause may take to come from others after a death.
constexpr int64_t kMoment = 100 * kMs;

ControlFrame heartbeat() { return ControlFrame(ControlKind::kHeartbeat); }
ControlFrame goodbye() { return ControlFrame(ControlKind::kGoodbye); }

// Ticks in time until then, and gives the first cause; the ranks in `live` send a heartbeat before each tick.
std::optional<Cause> tick_until(WatchCore& core, int64_t until_ns, const std::vector<int>& live) {
  while (core.next_tick_ns() <= until_ns) {
    const int64_t now = core.next_tick_ns();
    for (const int rank : live) {
      EXPECT_FALSE(core.receive(rank, heartbeat(), now));
    }
    if (auto cause = core.tick(now).cause) {
      return cause;
    }
  }
  return std::nullopt;
}

WatchCore linked_to_all(int rank, int size) {
  std::vector<int> peers;
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) {
      peers.push_back(peer);
    }
  }
  return {rank, size, peers, kDeadlineSeconds, 0};
}

TEST(WatchCore, HeartbeatsGoToTwoNeighboursOnEachSide) {
  const auto beats = [](int rank, int size) { return linked_to_all(rank, size).tick(0).beats; };
  EXPECT_EQ(beats(0, 8), (std::vector<int>{1, 2, 6, 7}));
  EXPECT_EQ(beats(5, 1024), (std::vector<int>{3, 4, 6, 7}));
  EXPECT_EQ(beats(1, 4), (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(beats(0, 2), (std::vector<int>{1}));
  EXPECT_TRUE(beats(0, 1).empty());
}

TEST(WatchCore, TenHeartbeatsFitIntoDeadlineHoweverLongItIs) {
  for (const double deadline_seconds : {0.05, 1.0, 5.0, 60.0}) {
    WatchCore core(0, 2, {1}, deadline_seconds, 0);
    EXPECT_EQ(core.tick(0).beats, std::vector<int>{1});
    EXPECT_EQ(core.next_tick_ns(), static_cast<int64_t>(deadline_seconds * 100 * kMs));
  }
}

TEST(WatchCore, TickForSuspicionSendsNoHeartbeat) {
  WatchCore core(0, 4, {1, 2, 3}, 5.0, 0);
  core.tick(0);
  core.suspect(2, Sign::kClosed, 10 * kMs);
  EXPECT_EQ(core.next_tick_ns(), 500 * kMs) << "half the deadline has passed long after the next heartbeat";
  tick_until(core, 2'500 * kMs, {1, 2, 3});
  ASSERT_EQ(core.next_tick_ns(), 2'510 * kMs);
  const auto tick = core.tick(2'510 * kMs);
  EXPECT_EQ(tick.cause->rank, 2);
  EXPECT_TRUE(tick.beats.empty());
}

TEST(WatchCore, ClosedChannelIsLossUnlessGoodbyeCameBefore) {
  WatchCore core = linked_to_all(0, 4);
  EXPECT_FALSE(core.receive(2, goodbye(), 0));
  EXPECT_FALSE(core.end(2, Sign::kClosed, 0));
  const auto cause = core.end(3, Sign::kClosed, 0);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rank, 3);
  EXPECT_EQ(cause->text, describe_loss(3, Sign::kClosed));
  EXPECT_EQ(core.running(), std::vector<int>{1});
}

TEST(WatchCore, SilentNeighbourIsLostAfterDeadlineAndNotBefore) {
  WatchCore core = linked_to_all(0, 8);
  EXPECT_FALSE(tick_until(core, kDeadline - 1, {1, 6, 7}));
  const auto cause = tick_until(core, kDeadline, {1, 6, 7});
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rank, 2);
  EXPECT_EQ(cause->sign, Sign::kSilent);
}

TEST(WatchCore, RankThatIsNoNeighbourMayBeSilent) {
  WatchCore core = linked_to_all(0, 8);
  EXPECT_FALSE(tick_until(core, 10 * kDeadline, {1, 2, 6, 7}));
}

TEST(WatchCore, LateTickBlamesNobodyForWhatIsNotReadYet) {
  WatchCore core = linked_to_all(0, 4);
  core.tick(0);
  core.suspect(2, Sign::kClosed, 0);
  EXPECT_FALSE(core.tick(5 * kDeadline).cause) << "this process was stopped, not the others";
  const auto cause = tick_until(core, 7 * kDeadline, {1, 3});
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rank, 2);
}

TEST(WatchCore, EndedLinkIsOnlySuspiciousForHalfTheDeadline) {
  WatchCore core = linked_to_all(0, 4);
  core.suspect(2, Sign::kClosed, 0);
  EXPECT_FALSE(tick_until(core, kDeadline / 2 - 1, {1, 2, 3}));
  const auto cause = tick_until(core, kDeadline / 2, {1, 2, 3});
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rank, 2);
  EXPECT_EQ(cause->sign, Sign::kClosed);
}

TEST(WatchCore, SecondSuspicionKeepsTimeOfFirst) {
  WatchCore core = linked_to_all(0, 4);
  core.suspect(2, Sign::kClosed, 0);
  core.suspect(2, Sign::kBroken, kDeadline / 2);
  const auto cause = tick_until(core, kDeadline / 2, {1, 2, 3});
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->sign, Sign::kBroken);
}

TEST(WatchCore, CauseIsSpreadOnceAndUnchanged) {
  WatchCore core = linked_to_all(0, 4);
  const Cause cause{.rank = 2, .sign = Sign::kStalled, .text = "words of another rank"};
  const auto received = core.receive(1, revoke_frame(cause), 0);
  ASSERT_TRUE(received);
  const auto outgoing = core.spread(*received);
  ASSERT_TRUE(outgoing);
  EXPECT_EQ(outgoing->frame.kind, ControlKind::kRevoke);
  EXPECT_EQ(outgoing->frame.rank, cause.rank);
  EXPECT_EQ(outgoing->frame.sign, cause.sign);
  EXPECT_EQ(outgoing->frame.text, cause.text);
  EXPECT_EQ(outgoing->to, (std::vector<int>{1, 2, 3}));
  EXPECT_TRUE(core.is_over());
  EXPECT_FALSE(core.spread({.rank = 3, .sign = Sign::kClosed, .text = "a later one"}));
  EXPECT_TRUE(core.tick(0).beats.empty()) << "the world is over";
}

// --- worlds in which not all tell all

constexpr int kLarge = 100;
// Seen by rank 0: it tells rank 4, and not rank 3.
constexpr int kTells = 4;
constexpr int kTellsNothing = 3;
std::vector<int> neighbours() { return {1, 2, 98, 99}; }

TEST(WatchCore, LargeWorldTellsThoseAtDistanceOfPowerOfTwo) {
  const auto told = [](int rank, int size) {
    return linked_to_all(rank, size).spread({.rank = 1, .sign = Sign::kClosed, .text = "lost"})->to;
  };
  EXPECT_EQ(told(0, kLarge), (std::vector<int>{1, 2, 4, 8, 16, 32, 68, 84, 92, 96, 98, 99}));
  EXPECT_EQ(told(64, 128), (std::vector<int>{0, 32, 48, 56, 60, 62, 63, 65, 66, 68, 72, 80, 96}));
  EXPECT_EQ(told(5, 64).size(), 63U) << "the largest world in which all tell all";
}

TEST(WatchCore, LargeWorldSaysGoodbyeToAll) {
  EXPECT_EQ(linked_to_all(0, kLarge).leave()->to.size(), static_cast<size_t>(kLarge - 1));
}

// Ranks 0 and 3 remain of a world that the others have left.
TEST(WatchCore, LargeWorldTellsAllWhenOneThatWouldPassItOnHasLeft) {
  WatchCore core = linked_to_all(0, kLarge);
  for (int rank = 1; rank < kLarge; ++rank) {
    if (rank != kTellsNothing) {
      core.receive(rank, goodbye(), 0);
      core.end(rank, Sign::kClosed, 0);
    }
  }
  const auto outgoing = core.spread({.rank = 0, .sign = Sign::kBroken, .text = "an error of rank 0"});
  ASSERT_TRUE(outgoing);
  EXPECT_EQ(outgoing->to, (std::vector<int>{kTellsNothing}));
}

TEST(WatchCore, LargeWorldIsEndedByClosedChannelOfWorkerThatTellsUs) {
  WatchCore core = linked_to_all(0, kLarge);
  EXPECT_TRUE(core.end(kTells, Sign::kClosed, 0));
}

TEST(WatchCore, WorkerThatTellsUsNothingMayHaveLeftWorldThatHasEnded) {
  WatchCore core = linked_to_all(0, kLarge);
  EXPECT_FALSE(core.end(kTellsNothing, Sign::kClosed, 0));
  const Cause cause{.rank = 50, .sign = Sign::kClosed, .text = "lost"};
  EXPECT_FALSE(tick_until(core, kDeadline - 1, neighbours()));
  const auto outgoing = core.spread(*core.receive(kTells, revoke_frame(cause), kDeadline));
  ASSERT_TRUE(outgoing);
  EXPECT_EQ(outgoing->frame.rank, cause.rank);
}

TEST(WatchCore, WithoutWordClosedChannelIsSilenceAfterDeadline) {
  WatchCore core = linked_to_all(0, kLarge);
  core.suspect(kTellsNothing, Sign::kClosed, 0);  // its data link may be the first to end
  EXPECT_FALSE(core.end(kTellsNothing, Sign::kClosed, 0));
  EXPECT_FALSE(tick_until(core, kDeadline - 1, neighbours()));
  const auto cause = tick_until(core, kDeadline, neighbours());
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rank, kTellsNothing);
  EXPECT_EQ(cause->sign, Sign::kSilent) << "it may have left, and live";
}

TEST(WatchCore, GoodbyeOfWorkerThatTellsUsNothingCounts) {
  WatchCore core = linked_to_all(0, kLarge);
  EXPECT_FALSE(core.receive(kTellsNothing, goodbye(), 0));
  EXPECT_FALSE(core.end(kTellsNothing, Sign::kClosed, 0));
  EXPECT_FALSE(tick_until(core, 3 * kDeadline, neighbours()));
}

// The programs of jobs of fixed size end when their world has ended.
TEST(WatchCore, WorkerThatTellsUsNothingMayHaveDiedAfterEndOfWorld) {
  WatchCore core = linked_to_all(0, kLarge);
  EXPECT_FALSE(core.die(kTellsNothing, 0));
  const Cause cause{.rank = 50, .sign = Sign::kClosed, .text = "lost"};
  const auto outgoing = core.spread(*core.receive(kTells, revoke_frame(cause), kMoment / 2));
  ASSERT_TRUE(outgoing);
  EXPECT_EQ(outgoing->frame.rank, cause.rank);
}

TEST(WatchCore, WithoutRevocationDeathOfWorkerThatTellsUsNothingIsLossAfterMoment) {
  WatchCore core = linked_to_all(0, kLarge);
  core.suspect(kTellsNothing, Sign::kClosed, 0);  // its data link may be the first to end, or the last
  EXPECT_FALSE(core.die(kTellsNothing, 0));
  core.suspect(kTellsNothing, Sign::kClosed, 0);
  EXPECT_FALSE(tick_until(core, kMoment - 1, neighbours()));
  const auto cause = tick_until(core, kMoment, neighbours());
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rank, kTellsNothing);
  EXPECT_EQ(cause->sign, Sign::kClosed);
}

// A worker that leaves breaks no connection, and a worker that tells us does so before it dies.
TEST(WatchCore, LargeWorldIsEndedAtOnceByCertainSigns) {
  EXPECT_TRUE(linked_to_all(0, kLarge).die(kTells, 0));
  EXPECT_TRUE(linked_to_all(0, kLarge).end(kTellsNothing, Sign::kSilent, 0));
  EXPECT_TRUE(linked_to_all(0, kLarge).end(kTellsNothing, Sign::kBroken, 0));
}

TEST(WatchCore, AbandonNamesRankThatFellSilent) {
  WatchCore core = linked_to_all(0, 4);
  ControlFrame abandon(ControlKind::kAbandon, "did not form");
  abandon.rank = 3;
  const auto cause = core.receive(1, abandon, 0);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rank, 3);
  EXPECT_EQ(cause->sign, Sign::kSilent);
}

TEST(WatchCore, WorkerThatHasLeftNoticesNoLossAndSpreadsNone) {
  WatchCore core = linked_to_all(0, 4);
  const auto outgoing = core.leave();
  ASSERT_TRUE(outgoing);
  EXPECT_EQ(outgoing->frame.kind, ControlKind::kGoodbye);
  EXPECT_EQ(outgoing->to, (std::vector<int>{1, 2, 3}));
  EXPECT_FALSE(core.leave()) << "once";
  EXPECT_FALSE(core.end(1, Sign::kClosed, 0));
  EXPECT_FALSE(core.receive(2, revoke_frame({.rank = 1, .sign = Sign::kClosed, .text = "lost"}), 0));
  EXPECT_FALSE(core.spread({.rank = 1, .sign = Sign::kClosed, .text = "lost"}));
}

TEST(WatchCore, TickThatFindsSeveralLossesNamesLowestRank) {
  WatchCore core = linked_to_all(0, 4);
  core.suspect(3, Sign::kClosed, 0);
  core.suspect(2, Sign::kClosed, 0);
  const auto cause = tick_until(core, kDeadline, {1, 2, 3});
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rank, 2);
}

// As with a late link. Rank 3 tells rank 0 of such a world nothing.
TEST(WatchCore, WorkerThatIsAddedLaterIsWatchedFromThenOn) {
  constexpr int kLate = 3;
  WatchCore core(0, 100, {1, 2, 4, 98, 99}, kDeadlineSeconds, 0);
  EXPECT_EQ(core.running(), (std::vector<int>{1, 2, 4, 98, 99}));
  core.add(kLate);
  EXPECT_EQ(core.running(), (std::vector<int>{1, 2, 3, 4, 98, 99}));
  EXPECT_EQ(core.end(kLate, Sign::kSilent, 0)->rank, kLate);
  EXPECT_EQ(core.spread({.rank = kLate, .sign = Sign::kSilent, .text = "lost"})->to,
            (std::vector<int>{1, 2, 4, 98, 99}));
}

TEST(WatchCore, WorkerThatIsAddedLaterGetsGoodbye) {
  WatchCore core(0, 100, {1}, kDeadlineSeconds, 0);
  core.add(3);
  EXPECT_FALSE(core.receive(3, heartbeat(), 0));
  EXPECT_EQ(core.leave()->to, (std::vector<int>{1, 3}));
}

}  // namespace
}  // namespace farandole::transport
