// What a worker decides while a world's mesh is set up, without sockets.
#include "transport/setup_core.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "transport/start_graph.h"

namespace farandole::transport {
namespace {

constexpr uint64_t kGeneration = 7;
constexpr int kThree[] = {0, 1, 1};  // the hosts

// What this worker sends until it has nothing more to send.
std::vector<SetupCore::Outgoing> all_outgoing(SetupCore& core) {
  std::vector<SetupCore::Outgoing> all;
  while (auto outgoing = core.take_outgoing()) {
    all.push_back(*std::move(outgoing));
  }
  return all;
}

ControlFrame ready(const std::string& corrections = "") { return ControlFrame(ControlKind::kReady, corrections); }
ControlFrame formed(const std::string& corrections = "") { return ControlFrame(ControlKind::kFormed, corrections); }

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

  SetupCore core_{1, kGeneration, kThree};
};

TEST_F(SetupOfThree, TellsRankZeroOnceWhenItIsLinkedToAll) {
  core_.join(0, true, false);
  core_.link(0);
  EXPECT_FALSE(core_.take_outgoing());
  EXPECT_TRUE(core_.lacks_a_link());
  core_.join(2, false, true);
  EXPECT_FALSE(core_.take_outgoing()) << "connected, but the link is not complete";
  core_.link(2);
  const auto sent = all_outgoing(core_);
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].frame.kind, ControlKind::kReady);
  EXPECT_EQ(sent[0].frame.text, "");
  EXPECT_EQ(sent[0].to, std::vector({0}));
  EXPECT_FALSE(core_.take_outgoing());
}

TEST_F(SetupOfThree, FormsWhenRankZeroSaysSo) {
  link_both();
  EXPECT_FALSE(core_.has_formed());
  all_outgoing(core_);
  EXPECT_FALSE(core_.has_formed());
  EXPECT_FALSE(core_.receive(0, formed()));
  EXPECT_TRUE(all_outgoing(core_).empty()) << "nobody is below it";
  EXPECT_TRUE(core_.has_formed());
  EXPECT_EQ(core_.hosts(), (std::vector<int>{0, 1, 1}));
}

TEST(SetupOfRankZero, AnswersWhenAllHaveReported) {
  SetupCore core(0, kGeneration, kThree);
  for (const int peer : {1, 2}) {
    core.join(peer, false, false);
    core.prove(peer);
    core.link(peer);
  }
  EXPECT_FALSE(core.receive(1, ready()));
  EXPECT_FALSE(core.receive(1, ready())) << "twice counts once";
  EXPECT_FALSE(core.take_outgoing());
  EXPECT_FALSE(core.receive(2, ready()));
  const auto sent = all_outgoing(core);
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].frame.kind, ControlKind::kFormed);
  EXPECT_EQ(sent[0].to, std::vector({1, 2}));
  EXPECT_TRUE(core.has_formed());
}

// Ranks 1 and 2 have the same host key, but are on different machines, as rank 1 finds.
TEST_F(SetupOfThree, CorrectsHostThatSharesNoMemory) {
  core_.join(0, true, false);
  core_.link(0);
  core_.join(2, false, /*shares_memory=*/false);
  core_.link(2);
  auto sent = all_outgoing(core_);
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].frame.text, "") << "it is the lowest rank of its host, with or without the other one";
  EXPECT_FALSE(core_.receive(0, formed("2:2")));
  all_outgoing(core_);
  EXPECT_EQ(core_.hosts(), (std::vector<int>{0, 1, 2}));

  SetupCore other(2, kGeneration, kThree);
  for (const int peer : {0, 1}) {
    other.join(peer, true, false);
    other.link(peer);
  }
  sent = all_outgoing(other);
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].frame.text, "2:2");
}

TEST(SetupOfRankZero, CollectsCorrections) {
  constexpr int kOneHost[] = {0, 0, 0, 0};
  SetupCore core(0, kGeneration, kOneHost);
  for (const int peer : {1, 2, 3}) {
    core.join(peer, false, peer == 1);
    core.link(peer);
  }
  EXPECT_FALSE(core.receive(3, ready("3:2")));
  EXPECT_FALSE(core.receive(1, ready()));
  EXPECT_FALSE(core.receive(2, ready("2:2")));
  const auto sent = all_outgoing(core);
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].frame.text, "2-3:2");
  EXPECT_EQ(core.hosts(), (std::vector<int>{0, 0, 2, 2}));
}

TEST_F(SetupOfThree, PairOfOneHostThatSharesNoMemoryIsErrorWithNextStep) {
  constexpr int kOneHost[] = {0, 0, 0};
  SetupCore core(1, kGeneration, kOneHost);
  core.join(0, true, /*shares_memory=*/true);
  core.link(0);
  core.join(2, false, /*shares_memory=*/false);
  core.link(2);
  all_outgoing(core);
  EXPECT_FALSE(core.receive(0, formed()));
  all_outgoing(core);
  try {
    core.hosts();
    FAIL() << "rank 2 says that it shares memory with rank 0, and it shares none with rank 1";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("FARANDOLE_HOST_KEY"), std::string::npos) << error.what();
  }
}

TEST(SetupOfRankZero, CorrectionsThatDoNotFitAreErrorWithNextStep) {
  constexpr int kSize = 1'000;
  const std::vector<int> one_host(kSize, 0);
  SetupCore core(0, kGeneration, one_host);
  for (const int peer : core.peers()) {
    core.join(peer, false, true);
    core.link(peer);
    if (start_parent(peer, kSize) == 0) {
      // Of every second rank, as many as there are on their way to each of these.
      HostCorrections corrections;
      for (int rank = peer; rank < std::min(2 * peer, peer + 150); rank += 2) {
        corrections[rank] = rank;
      }
      EXPECT_FALSE(core.receive(peer, ready(to_text(corrections))));
    }
  }
  try {
    all_outgoing(core);
    FAIL() << "such a text is longer than a frame";
  } catch (const base::Error& error) {
    EXPECT_NE(std::string(error.what()).find("such as rank 1; give the workers of each host"), std::string::npos)
        << error.what();
  }
}

TEST_F(SetupOfThree, FrameThatMakesNoSenseIsLossOfItsSender) {
  link_both();
  for (const auto& [peer, frame] : {std::pair{0, formed()}, {2, formed()}, {2, ready()}, {0, ready("rubbish")}}) {
    const auto cause = core_.receive(peer, frame);
    ASSERT_TRUE(cause) << "rank 1 has not reported yet, and nobody reports to it";
    EXPECT_EQ(cause->rank, peer);
    EXPECT_EQ(cause->sign, Sign::kBroken);
  }
}

TEST_F(SetupOfThree, WorkerThatKnowsWhichRankIsMissingGivesUpFirst) {
  SetupCore root(0, kGeneration, kThree);
  EXPECT_EQ(core_.give_up_part(), 0) << "it lacks a link";
  link_both();
  all_outgoing(core_);
  for (const int peer : {1, 2}) {
    root.join(peer, false, false);
    root.link(peer);
  }
  // As far apart as they can be: a busy machine may keep a worker from telling the others in time.
  EXPECT_EQ(root.give_up_part(), 0.5) << "it waits for reports";
  EXPECT_EQ(core_.give_up_part(), 1) << "it waits for its answer";
  EXPECT_EQ(root.timeout().lost_rank(), 1);
  EXPECT_EQ(core_.timeout().lost_rank(), 0);
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
  core_.join(2, false, true);
  EXPECT_TRUE(core_.lacks_a_link());
  EXPECT_FALSE(core_.take_outgoing());
  core_.link(2);
  EXPECT_TRUE(core_.take_outgoing());
}

TEST(SetupOfRankZero, ReportOverEarlierConnectionIsVoid) {
  SetupCore core(0, kGeneration, kThree);
  for (const int peer : {1, 2}) {
    core.join(peer, false, false);
    core.link(peer);
    EXPECT_FALSE(core.receive(peer, ready()));
  }
  core.join(2, false, false);
  core.link(2);
  EXPECT_FALSE(core.take_outgoing());
  EXPECT_FALSE(core.receive(2, ready()));
  EXPECT_TRUE(core.take_outgoing());
}

TEST_F(SetupOfThree, WorldThatHasFormedWaitsForLinkThatIsReplaced) {
  link_both();
  all_outgoing(core_);
  core_.join(2, false, true);
  EXPECT_FALSE(core_.receive(0, formed()));
  all_outgoing(core_);
  EXPECT_FALSE(core_.has_formed());
  core_.link(2);
  EXPECT_TRUE(core_.has_formed());
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

// Rank 5 of a world in which not all tell all, with hosts of eight ranks. Rank 2 is of its host and tells it nothing;
// rank 4 tells it, and is above it in the tree.
class SetupOfManyRanks : public ::testing::Test {
 protected:
  static constexpr int kSize = 100;

  SetupOfManyRanks() : hosts_(kSize) {
    for (int rank = 0; rank < kSize; ++rank) {
      hosts_[static_cast<size_t>(rank)] = rank / 8 * 8;
    }
    core_.emplace(5, kGeneration, hosts_);
    for (const int peer : core_->peers()) {
      core_->join(peer, /*connector=*/true, /*shares_memory=*/peer < 8);
      core_->link(peer);
    }
  }
  void report() { ASSERT_TRUE(core_->take_outgoing()); }

  std::vector<int> hosts_;
  std::optional<SetupCore> core_;
};

TEST_F(SetupOfManyRanks, ReportsToParentInTree) {
  const auto outgoing = core_->take_outgoing();
  ASSERT_TRUE(outgoing);
  EXPECT_EQ(outgoing->to, std::vector({4}));
}

TEST_F(SetupOfManyRanks, RankAboveOthersWaitsForThemAndPassesTheAnswerOn) {
  SetupCore core(4, kGeneration, hosts_);
  for (const int peer : core.peers()) {
    core.join(peer, true, peer < 8);
    core.link(peer);
  }
  EXPECT_FALSE(core.receive(5, ready()));
  EXPECT_FALSE(core.take_outgoing()) << "rank 6 has not reported";
  EXPECT_EQ(core.timeout().lost_rank(), 6);
  EXPECT_FALSE(core.receive(6, ready("7:7")));
  auto sent = all_outgoing(core);
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].to, std::vector({0}));
  EXPECT_EQ(sent[0].frame.text, "7:7");
  EXPECT_FALSE(core.receive(0, formed("7:7,90:90")));
  sent = all_outgoing(core);
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].to, std::vector({5, 6}));
  EXPECT_EQ(sent[0].frame.text, "7:7,90:90");
}

TEST_F(SetupOfManyRanks, WorkerThatTellsUsNothingMayHaveLeftWorldThatHasFormedAndEnded) {
  report();
  EXPECT_FALSE(core_->end(2, Sign::kClosed));
  EXPECT_TRUE(core_->keeps(2)) << "the watch judges it if the world still forms here";
}

TEST_F(SetupOfManyRanks, EndIsLossWhereWorldCannotHaveFormed) {
  EXPECT_TRUE(core_->end(2, Sign::kClosed)) << "this worker has not reported";
}

TEST_F(SetupOfManyRanks, EndIsLossOfWorkerThatWouldHaveToldUs) {
  report();
  EXPECT_TRUE(core_->end(4, Sign::kClosed));
}

TEST_F(SetupOfManyRanks, DeathOfWorkerThatTellsUsNothingMayBeEndOfProgramWhoseWorldHasEnded) {
  report();
  EXPECT_FALSE(core_->die(2));
  EXPECT_FALSE(core_->end(2, Sign::kClosed)) << "its connections close after that";
  EXPECT_FALSE(core_->die(2)) << "and its memory still shows the death";
  EXPECT_TRUE(core_->keeps(2));
}

TEST_F(SetupOfManyRanks, CauseThatComesAfterSuchDeathEndsWorld) {
  report();
  EXPECT_FALSE(core_->die(2));
  const auto cause = core_->receive(4, revoke_frame({.rank = 9, .sign = Sign::kClosed, .text = "rank 9 was lost"}));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rank, 9);
}

TEST_F(SetupOfManyRanks, DeathIsLossWhereWorldCannotHaveFormed) {
  const auto cause = core_->die(2);
  ASSERT_TRUE(cause) << "this worker has not reported";
  EXPECT_EQ(cause->rank, 2);
  EXPECT_EQ(cause->sign, Sign::kClosed);
  EXPECT_EQ(cause->text, describe_loss(2, Sign::kClosed));
}

TEST_F(SetupOfManyRanks, DeathIsLossOfWorkerThatWouldHaveToldUs) {
  report();
  EXPECT_TRUE(core_->die(4));
}

TEST_F(SetupOfManyRanks, SilenceIsLoss) {
  report();
  EXPECT_TRUE(core_->end(2, Sign::kSilent));
}

TEST(SetupCore, WorldOfOneFormsAtOnce) {
  constexpr int kOne[] = {0};
  SetupCore core(0, kGeneration, kOne);
  EXPECT_FALSE(core.take_outgoing());
  EXPECT_TRUE(core.has_formed());
  EXPECT_EQ(core.hosts(), std::vector<int>{0});
}

}  // namespace
}  // namespace farandole::transport
