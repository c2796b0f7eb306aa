// What a worker decides while a world's mesh is set up, without sockets.
#include "transport/setup_core.h"

#include <gtest/gtest.h>

namespace farandole::transport {
namespace {

constexpr uint64_t kGeneration = 7;

// Rank 1 of three: it connects to rank 0, and rank 2 connects to it. Rank 2 is on its host.
class SetupOfThree : public ::testing::Test {
 protected:
  void link_both() {
    core_.join(0, /*connector=*/true, /*shares_memory=*/false);
    core_.link(0);
    core_.join(2, /*connector=*/false, /*shares_memory=*/true);
    core_.prove(2);
    core_.link(2);
  }
  static ControlFrame ready(const std::vector<bool>& row) { return ControlFrame(ControlKind::kReady, pack_row(row)); }

  SetupCore core_{1, 3, kGeneration};
};

TEST_F(SetupOfThree, AnnouncesOnceWhenItIsLinkedToAll) {
  core_.join(0, true, false);
  core_.link(0);
  EXPECT_FALSE(core_.announce());
  EXPECT_TRUE(core_.lacks_a_link());
  core_.join(2, false, true);
  EXPECT_FALSE(core_.announce()) << "connected, but the link is not complete";
  core_.link(2);
  const auto frame = core_.announce();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->kind, ControlKind::kReady);
  EXPECT_EQ(unpack_row(frame->text, 3), (std::vector<bool>{false, true, true}));
  EXPECT_FALSE(core_.announce());
}

TEST_F(SetupOfThree, FormsWhenAllAreReadyAndGroupsHosts) {
  link_both();
  EXPECT_FALSE(core_.receive(0, ready({true, false, false})));
  EXPECT_FALSE(core_.receive(2, ready({false, true, true})));
  EXPECT_FALSE(core_.all_are_ready()) << "this one has not said so";
  ASSERT_TRUE(core_.announce());
  EXPECT_TRUE(core_.all_are_ready());
  EXPECT_EQ(core_.hosts(), (std::vector<int>{0, 1, 1}));
}

TEST_F(SetupOfThree, ReadyTwiceCountsOnce) {
  link_both();
  ASSERT_TRUE(core_.announce());
  EXPECT_FALSE(core_.receive(0, ready({true, false, false})));
  EXPECT_FALSE(core_.receive(0, ready({true, false, false})));
  EXPECT_FALSE(core_.all_are_ready());
}

TEST_F(SetupOfThree, EndOfConnectionThatBothTookForProvenIsLoss) {
  core_.join(0, /*connector=*/true, false);
  const auto cause = core_.end(0, Sign::kClosed);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rank, 0);
  EXPECT_EQ(cause->text, describe_loss(0, Sign::kClosed));
}

TEST_F(SetupOfThree, EndOfConnectionThatOnlyThisSideTookForProvenIsNone) {
  core_.join(2, /*connector=*/false, true);
  EXPECT_FALSE(core_.end(2, Sign::kClosed));
  core_.join(2, false, true);
  core_.prove(2);
  EXPECT_TRUE(core_.end(2, Sign::kClosed));
}

TEST_F(SetupOfThree, LaterConnectionReplacesEarlierOne) {
  link_both();
  EXPECT_FALSE(core_.receive(2, ready({false, true, true})));
  core_.join(2, false, true);
  EXPECT_TRUE(core_.lacks_a_link());
  EXPECT_FALSE(core_.announce());
  core_.link(2);
  ASSERT_TRUE(core_.announce());
  EXPECT_FALSE(core_.receive(0, ready({true, false, false})));
  EXPECT_FALSE(core_.all_are_ready()) << "what came over the earlier connection is void";
}

TEST_F(SetupOfThree, WorkerThatHasLeftIsNoLoss) {
  link_both();
  EXPECT_FALSE(core_.receive(2, ControlFrame(ControlKind::kGoodbye)));
  EXPECT_FALSE(core_.end(2, Sign::kClosed));
  EXPECT_FALSE(core_.die(2));
  EXPECT_TRUE(core_.has_left(2));
  EXPECT_TRUE(core_.die(0));
}

TEST_F(SetupOfThree, CauseOfAnotherWorkerIsPassedOnUnchanged) {
  link_both();
  const auto cause = core_.receive(0, revoke_frame({.rank = 2, .sign = Sign::kRevoked, .text = "as the roster said"}));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rank, 2);
  EXPECT_EQ(cause->text, "as the roster said");
}

TEST_F(SetupOfThree, AbandonEndsSetUpWithItsWords) {
  link_both();
  ControlFrame abandon(ControlKind::kAbandon, "no time left");
  abandon.rank = 2;
  try {
    core_.receive(0, abandon);
    FAIL() << "must throw";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kTimeout);
    EXPECT_STREQ(error.what(), "no time left");
    EXPECT_EQ(error.lost_rank(), 2);
  }
}

TEST_F(SetupOfThree, TimeoutNamesRankThatDidNotConnectAndItsRefusal) {
  core_.join(0, true, false);
  core_.link(0);
  core_.refuse(2, Refusal::kSecret);
  const base::Error error = core_.timeout();
  EXPECT_EQ(error.lost_rank(), 2);
  EXPECT_NE(std::string(error.what()).find("another secret"), std::string::npos) << error.what();
}

// Rank 0 of a world in which not all tell all. Rank 3 tells it nothing.
class SetupOfManyRanks : public ::testing::Test {
 protected:
  static constexpr int kSize = 100;

  SetupOfManyRanks() {
    for (int rank = 1; rank < kSize; ++rank) {
      core_.join(rank, /*connector=*/true, /*shares_memory=*/false);
      core_.link(rank);
    }
  }
  void receive_ready(int rank) {
    EXPECT_FALSE(core_.receive(rank, ControlFrame(ControlKind::kReady, pack_row(std::vector<bool>(kSize)))));
  }

  SetupCore core_{0, kSize, kGeneration};
};

TEST_F(SetupOfManyRanks, ReadyWorkerThatTellsUsNothingMayHaveLeftWorldThatHasFormedAndEnded) {
  ASSERT_TRUE(core_.announce());
  receive_ready(3);
  EXPECT_FALSE(core_.end(3, Sign::kClosed));
  EXPECT_TRUE(core_.keeps(3)) << "the watch judges it if the world still forms here";
  EXPECT_FALSE(core_.keeps(5)) << "not ready";
}

TEST_F(SetupOfManyRanks, EndIsLossWhereWorldCannotHaveFormed) {
  receive_ready(3);
  EXPECT_TRUE(core_.end(3, Sign::kClosed)) << "this worker has not announced";
  ASSERT_TRUE(core_.announce());
  EXPECT_TRUE(core_.end(5, Sign::kClosed)) << "that worker was not ready";
}

TEST_F(SetupOfManyRanks, EndIsLossOfWorkerThatWouldHaveToldUs) {
  ASSERT_TRUE(core_.announce());
  receive_ready(4);
  EXPECT_TRUE(core_.end(4, Sign::kClosed));
}

TEST_F(SetupOfManyRanks, DeathOfReadyWorkerThatTellsUsNothingMayBeEndOfProgramWhoseWorldHasEnded) {
  ASSERT_TRUE(core_.announce());
  receive_ready(3);
  EXPECT_FALSE(core_.die(3));
  EXPECT_FALSE(core_.end(3, Sign::kClosed)) << "its connections close after that";
  EXPECT_FALSE(core_.die(3)) << "and its memory still shows the death";
  EXPECT_TRUE(core_.keeps(3));
}

TEST_F(SetupOfManyRanks, CauseThatComesAfterSuchDeathEndsWorld) {
  ASSERT_TRUE(core_.announce());
  receive_ready(3);
  EXPECT_FALSE(core_.die(3));
  const auto cause = core_.receive(4, revoke_frame({.rank = 9, .sign = Sign::kClosed, .text = "rank 9 was lost"}));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rank, 9);
}

TEST_F(SetupOfManyRanks, DeathIsLossWhereWorldCannotHaveFormed) {
  receive_ready(3);
  const auto cause = core_.die(3);
  ASSERT_TRUE(cause) << "this worker has not announced";
  EXPECT_EQ(cause->rank, 3);
  EXPECT_EQ(cause->sign, Sign::kClosed);
  EXPECT_EQ(cause->text, describe_loss(3, Sign::kClosed));
  ASSERT_TRUE(core_.announce());
  EXPECT_TRUE(core_.die(5)) << "that worker was not ready";
}

TEST_F(SetupOfManyRanks, DeathIsLossOfWorkerThatWouldHaveToldUs) {
  ASSERT_TRUE(core_.announce());
  receive_ready(4);
  EXPECT_TRUE(core_.die(4));
}

TEST_F(SetupOfManyRanks, SilenceIsLoss) {
  ASSERT_TRUE(core_.announce());
  receive_ready(3);
  EXPECT_TRUE(core_.end(3, Sign::kSilent));
}

TEST(SetupCore, WorldOfOneFormsAtOnce) {
  SetupCore core(0, 1, kGeneration);
  ASSERT_TRUE(core.announce());
  EXPECT_TRUE(core.all_are_ready());
  EXPECT_EQ(core.hosts(), std::vector<int>{0});
}

}  // namespace
}  // namespace farandole::transport
