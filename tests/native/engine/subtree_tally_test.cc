// What a rank with children passes on, and when: its reports in one thread, with times as arguments.
#include "engine/subtree_tally.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace farandole::engine {
namespace {

constexpr int64_t kHold = 1000;

Ready ask(const std::string& name, Kind kind = Kind::kAllreduce, std::vector<int64_t> shape = {4}) {
  Ready ready;
  Signature signature;
  signature.kind = kind;
  signature.shape = std::move(shape);
  ready.fresh.push_back({0, name, signature});
  return ready;
}

Ready bit(uint32_t number, uint32_t group = 0) {
  Ready ready;
  ready.add_known(group, number);
  return ready;
}

Report of(int rank, Ready ready) { return {RankSet(rank), rank, ready.age_ns, std::move(ready)}; }

// Rank 2 is the leader of the second of three hosts of two ranks, with the third one below it.
class TallyOfRankTwo : public ::testing::Test {
 protected:
  TallyOfRankTwo() : tree_(2, {0, 0, 2, 2, 4, 4}, /*fanout=*/1), tally_(tree_, kHold) {}

  // Rank 4 reports for its host.
  static Report of_host(Ready ready) {
    Report report = of(4, std::move(ready));
    report.ranks.add(RankSet(5));
    return report;
  }
  void decide(const std::string& name, uint32_t number, Kind kind = Kind::kAllreduce) {
    Decision decision;
    Decision::Agreed& agreed = decision.agreed.emplace_back();
    agreed.bit = number;
    agreed.name = name;
    agreed.signature.kind = kind;
    tally_.follow(decision);
  }

  AgreementTree tree_;
  SubtreeTally tally_;
};

TEST_F(TallyOfRankTwo, TreeHasHostsAsNodes) {
  EXPECT_EQ(tree_.parent(), 0);
  EXPECT_EQ(tree_.children(), (std::vector<int>{3, 4}));
  EXPECT_TRUE(tree_.has_children(4));
  EXPECT_FALSE(tree_.has_children(3));
  EXPECT_EQ(tree_.child_towards(5), 4);
  EXPECT_EQ(tree_.child_towards(1), -1);
  EXPECT_EQ(AgreementTree(5, {0, 0, 2, 2, 4, 4}, 0).parent(), 0) << "a star";
}

TEST_F(TallyOfRankTwo, RequestIsPassedOnOnceWhenWholeSubtreeHasIt) {
  tally_.add(of(2, ask("x")), 10);
  tally_.add(of_host(ask("x")), 20);
  EXPECT_TRUE(tally_.take(20).empty());
  EXPECT_EQ(tally_.due_ns(), 10 + kHold);
  tally_.add(of(3, ask("x")), 30);
  const std::vector<Report> reports = decode_reports(encode(tally_.take(40)));
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].ranks.pairs(), (std::vector<int32_t>{2, 5}));
  EXPECT_EQ(reports[0].last_rank, 3);
  EXPECT_EQ(reports[0].first_age_ns, 30);
  EXPECT_EQ(reports[0].ready.age_ns, 10);
  ASSERT_EQ(reports[0].ready.fresh.size(), 1U);
  EXPECT_EQ(reports[0].ready.fresh[0].name, "x");
  EXPECT_EQ(tally_.due_ns(), 0);
  EXPECT_TRUE(tally_.take(40).empty());
}

TEST_F(TallyOfRankTwo, WhatDiffersStaysApart) {
  tally_.add(of(2, ask("x", Kind::kAllreduce, {5})), 0);
  tally_.add(of(3, ask("x")), 0);
  tally_.add(of_host(ask("x")), 0);
  const std::vector<Report> reports = tally_.take(0);
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_EQ(reports[0].ranks.pairs(), (std::vector<int32_t>{2, 2}));
  EXPECT_EQ(reports[1].ranks.pairs(), (std::vector<int32_t>{3, 5}));
}

TEST_F(TallyOfRankTwo, NameRecursIfAnyRankSaysSo) {
  for (const int which : {2, 3}) {
    SubtreeTally tally(tree_, kHold);
    for (const int rank : {2, 3}) {
      Ready ready = ask("x");
      ready.fresh[0].recurs = rank == which;
      tally.add(of(rank, std::move(ready)), 0);
    }
    tally.add(of_host(ask("x")), 0);
    const std::vector<Report> reports = tally.take(0);
    ASSERT_EQ(reports.size(), 1U);
    EXPECT_TRUE(reports[0].ready.fresh.at(0).recurs) << "rank " << which << " says so";
  }
}

TEST_F(TallyOfRankTwo, BitsAreMergedAndOneInFullCountsWithThem) {
  decide("x", 0);
  decide("y", 1);
  for (const int rank : {2, 3}) {
    tally_.add(of(rank, bit(0)), 0);
    tally_.add(of(rank, bit(1)), 0);
  }
  tally_.add(of_host(bit(1)), 0);
  tally_.add(of_host(ask("x", Kind::kAllreduce, {9})), 0);
  const std::vector<Report> reports = tally_.take(0);
  ASSERT_EQ(reports.size(), 3U);
  EXPECT_EQ(reports[0].ranks.pairs(), (std::vector<int32_t>{2, 5}));
  EXPECT_EQ(reports[0].ready.known.at(0).bits.words(), std::vector<uint64_t>{2});
  EXPECT_EQ(reports[1].ready.known.at(0).bits.words(), std::vector<uint64_t>{1});
  EXPECT_EQ(reports[2].ready.fresh.at(0).name, "x");
}

TEST_F(TallyOfRankTwo, HeldForTooLongIsPassedOnAndLateRankFollowsAtOnce) {
  tally_.add(of(2, ask("x")), 0);
  tally_.add(of_host(ask("x")), 900);
  EXPECT_TRUE(tally_.take(kHold - 1).empty());
  const std::vector<Report> early = tally_.take(kHold);
  ASSERT_EQ(early.size(), 1U);
  EXPECT_EQ(early[0].ranks.pairs(), (std::vector<int32_t>{2, 2, 4, 5}));
  tally_.add(of(3, ask("x")), 5000);
  const std::vector<Report> late = tally_.take(5000);
  ASSERT_EQ(late.size(), 1U);
  EXPECT_EQ(late[0].ranks.pairs(), (std::vector<int32_t>{3, 3}));
}

TEST_F(TallyOfRankTwo, DecisionBeginsNewCount) {
  tally_.add(of(2, ask("x")), 0);
  tally_.take(kHold);  // rank 0 hears of it, and refuses it, because another rank has joined
  Decision refusal;
  refusal.refused.push_back({"x", "why", {2}});
  tally_.follow(refusal);
  for (const int rank : {2, 3}) {
    tally_.add(of(rank, ask("x")), 2 * kHold);
    EXPECT_TRUE(tally_.take(2 * kHold).empty());
  }
  tally_.add(of_host(ask("x")), 2 * kHold);
  EXPECT_EQ(tally_.take(2 * kHold).at(0).ranks.pairs(), (std::vector<int32_t>{2, 5}));
}

TEST_F(TallyOfRankTwo, NothingIsHeldWhileRankHasJoinedAndJoinComesLast) {
  tally_.add(of(2, ask("x")), 0);
  tally_.add(of(3, ask("join", Kind::kJoin)), 0);
  tally_.add(of_host(ask("x")), 0);
  const std::vector<Report> reports = tally_.take(0);
  ASSERT_EQ(reports.size(), 3U);
  EXPECT_EQ(reports[0].ready.fresh.at(0).name, "x");
  EXPECT_EQ(reports[1].ready.fresh.at(0).name, "x");
  EXPECT_EQ(reports[2].ready.fresh.at(0).signature.kind, Kind::kJoin);
  EXPECT_EQ(reports[2].ranks.pairs(), (std::vector<int32_t>{3, 3}));
  decide("", kNoBit, Kind::kJoin);  // all have
  tally_.add(of(2, ask("y")), 0);
  EXPECT_TRUE(tally_.take(0).empty());
}

TEST_F(TallyOfRankTwo, TransferWaitsForNoOtherRank) {
  tally_.add(of(2, ask("x", Kind::kTransfer)), 0);
  EXPECT_EQ(tally_.take(0).size(), 1U);
  decide("x", 0, Kind::kTransfer);
  tally_.add(of(2, bit(0)), 0);
  EXPECT_EQ(tally_.take(0).size(), 1U);
}

TEST_F(TallyOfRankTwo, GroupNeedsItsMembersInSubtreeOnly) {
  Decision decision;
  Decision::Agreed& agreed = decision.agreed.emplace_back();
  agreed.signature.kind = Kind::kAddGroup;
  agreed.signature.shape = {0, 3, 5};
  agreed.sizes = {7};
  tally_.follow(decision);
  Ready ready = ask("x");
  ready.fresh[0].group = 7;
  tally_.add(of(3, ready), 0);
  EXPECT_TRUE(tally_.take(0).empty());
  tally_.add(of(5, ready), 0);
  EXPECT_EQ(tally_.take(0).at(0).ranks.pairs(), (std::vector<int32_t>{3, 3, 5, 5}));
  // What waits is passed on before the group's end is asked for, so that rank 0 refuses that.
  tally_.add(of(3, ready), 0);
  tally_.add(of(3, ask("end", Kind::kRemoveGroup, {7})), 0);
  EXPECT_EQ(tally_.take(0).at(0).ready.fresh.at(0).name, "x");
}

TEST_F(TallyOfRankTwo, EndIsPassedOnWhenWholeSubtreeIsFinished) {
  Ready ready;
  ready.finished = true;
  tally_.add(of(2, ready), 0);
  tally_.add(of_host(ready), 0);
  EXPECT_TRUE(tally_.take(0).empty());
  tally_.add(of(3, ready), 0);
  EXPECT_EQ(tally_.take(0).at(0).ranks.size(), 4);
}

TEST_F(TallyOfRankTwo, AnswersAndLeavingArePassedOnAtOnce) {
  Ready ready;
  ready.leaving = true;
  ready.answers.push_back({1, false, "sleeps"});
  tally_.add(of(3, ready), 0);
  const std::vector<Report> reports = tally_.take(0);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].last_rank, 3);
  EXPECT_TRUE(reports[0].ready.leaving);
  EXPECT_EQ(reports[0].ready.answers.at(0).text, "sleeps");
}

TEST_F(TallyOfRankTwo, NonsenseIsError) {
  EXPECT_THROW(tally_.add(of(3, bit(0)), 0), base::Error) << "a bit that was never given out";
  EXPECT_THROW(tally_.add(of(3, bit(0, 9)), 0), base::Error) << "a group that does not exist";
  tally_.add(of(3, ask("x")), 0);
  EXPECT_THROW(tally_.add(of(3, ask("x")), 0), base::Error) << "twice";
}

// All pairs of sets of six ranks.
TEST(RankSet, SetsAreAddedUnlessTheyHaveRanksInCommon) {
  const auto set_of = [](unsigned bits) {
    std::vector<int32_t> pairs;
    for (int rank = 0; rank < 6; ++rank) {
      if ((bits >> rank & 1) == 0) {
        continue;
      }
      if (!pairs.empty() && pairs.back() == rank - 1) {
        pairs.back() = rank;
      } else {
        pairs.insert(pairs.end(), {rank, rank});
      }
    }
    return RankSet::from_pairs(pairs);
  };
  for (unsigned one = 0; one < 64; ++one) {
    for (unsigned other = 0; other < 64; ++other) {
      RankSet sum = set_of(one);
      ASSERT_EQ(sum.add(set_of(other)), (one & other) == 0) << one << " and " << other;
      ASSERT_EQ(sum, set_of((one & other) == 0 ? one | other : one)) << one << " and " << other;
    }
  }
}

TEST(RankSet, RangesComeBackFromTheWireAndNonsenseDoesNot) {
  RankSet set(4);
  EXPECT_TRUE(set.add(RankSet(2)));
  EXPECT_TRUE(set.add(RankSet(3)));
  EXPECT_TRUE(set.add(RankSet(9)));
  EXPECT_FALSE(set.add(RankSet(3)));
  EXPECT_EQ(set.pairs(), (std::vector<int32_t>{2, 4, 9, 9}));
  EXPECT_EQ(set.size(), 4);
  EXPECT_EQ(RankSet::from_pairs(set.pairs()), set);
  EXPECT_TRUE(set.contains(4));
  EXPECT_FALSE(set.contains(5));
  for (const std::vector<int32_t>& wrong :
       std::vector<std::vector<int32_t>>{{1}, {3, 2}, {1, 2, 3, 4}, {-1, 0}, {5, 6, 1, 2}, {INT32_MIN, INT32_MAX}}) {
    EXPECT_THROW(RankSet::from_pairs(wrong), base::Error);
  }
}

}  // namespace
}  // namespace farandole::engine
