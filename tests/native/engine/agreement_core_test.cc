// Agreement of a whole world in one thread: the cores of all ranks, and messages that are handed from one to the other.
#include "engine/agreement_core.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"

namespace farandole::engine {
namespace {

class WorldOfCores : public ::testing::Test {
 protected:
  static constexpr int kSize = 3;

  WorldOfCores() {
    for (int rank = 0; rank < kSize; ++rank) {
      collective::Group world;
      world.members.resize(kSize);
      std::iota(world.members.begin(), world.members.end(), 0);
      world.index = rank;
      cores_.push_back(std::make_unique<AgreementCore>(AgreementTree(rank, {0, 0, 0}, /*fanout=*/0), world,
                                                       /*waits_for_formed=*/false, recorder_));
    }
  }

  AgreementCore& core(int rank) { return *cores_[static_cast<size_t>(rank)]; }

  static std::unique_ptr<Pending> request(const std::string& name, Kind kind = Kind::kAllreduce,
                                          std::vector<int64_t> shape = {4}) {
    auto pending = std::make_unique<Pending>();
    pending->request.name = name;
    pending->request.signature.kind = kind;
    pending->request.signature.shape = std::move(shape);
    pending->completion = std::make_shared<Completion>();
    return pending;
  }

  // Rank 0 counts it, in the bytes in which it would come.
  void report(int rank, std::unique_ptr<Pending> pending) {
    Ready ready;
    core(rank).reported().add(std::move(pending), ready);
    core(0).coordinator()->receive(rank, decode_ready(encode(ready)));
  }

  // What all ranks take of the decisions that rank 0 makes now.
  std::vector<AgreementCore::Taken> decide() {
    std::vector<AgreementCore::Taken> taken(kSize);
    for (Decision decision : core(0).coordinator()->decide()) {
      decision.number = core(0).next_number();
      for (int rank = 0; rank < kSize; ++rank) {
        core(rank).advance(decode_decision(encode(decision)));
        core(rank).take(decision, taken[static_cast<size_t>(rank)]);
      }
    }
    return taken;
  }

  Recorder recorder_;
  std::vector<std::unique_ptr<AgreementCore>> cores_;
};

TEST_F(WorldOfCores, RequestRunsEverywhereWhenLastRankIsReady) {
  for (int rank = 0; rank < kSize; ++rank) {
    for (const AgreementCore::Taken& taken : decide()) {
      EXPECT_TRUE(taken.runnables.empty()) << "before rank " << rank << " was ready";
    }
    report(rank, request("gradient"));
  }
  for (const AgreementCore::Taken& taken : decide()) {
    ASSERT_EQ(taken.runnables.size(), 1U);
    EXPECT_EQ(taken.runnables[0].pending->request.name, "gradient");
  }
}

TEST_F(WorldOfCores, NameThatComesAgainIsReportedAsBit) {
  for (int round = 0; round < 3; ++round) {
    for (int rank = 0; rank < kSize; ++rank) {
      auto pending = request("gradient");
      EXPECT_EQ(core(rank).reported().bit_of(pending->request) == kNoBit, round < 2);
      report(rank, std::move(pending));
    }
    for (const AgreementCore::Taken& taken : decide()) {
      EXPECT_EQ(taken.runnables.size(), 1U);
    }
  }
  EXPECT_EQ(core(1).next_number(), 4U);
}

TEST_F(WorldOfCores, NameOfRequestMadeInTurnIsReportedAsBitTheSecondTime) {
  for (int round = 0; round < 2; ++round) {
    for (int rank = 0; rank < kSize; ++rank) {
      auto pending = request("noname.0");
      pending->request.in_turn = true;
      EXPECT_EQ(core(rank).reported().bit_of(pending->request) == kNoBit, round < 1);
      report(rank, std::move(pending));
    }
    for (const AgreementCore::Taken& taken : decide()) {
      EXPECT_EQ(taken.runnables.size(), 1U);
    }
  }
}

TEST_F(WorldOfCores, DecisionOutOfOrderIsError) {
  Decision decision;
  decision.number = 2;
  EXPECT_THROW(core(1).advance(decision), base::Error);
  decision.number = 1;
  core(1).advance(decision);
  EXPECT_THROW(core(1).advance(decision), base::Error) << "once";
}

TEST_F(WorldOfCores, QueryHasNoPlaceInOrder) {
  Decision query;
  query.type = Decision::Type::kStallQuery;
  core(1).advance(query);
  EXPECT_EQ(core(1).next_number(), 1U);
}

TEST_F(WorldOfCores, QueryForRankThatWorldLacksIsError) {
  Decision query;
  query.type = Decision::Type::kStallQuery;
  query.asked.add(RankSet(2));
  EXPECT_EQ(core(0).next_hops(query), std::vector<int>{2});
  EXPECT_TRUE(core(1).next_hops(query).empty());
  query.asked.add(RankSet(1'000'000));
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_THROW(core(rank).next_hops(query), base::Error);
  }
}

TEST_F(WorldOfCores, RefusedRequestIsHandedBackWithReasonOnRanksThatAsked) {
  for (int rank = 0; rank < kSize; ++rank) {
    report(rank, request("odd", Kind::kAllreduce, {rank + 1}));
  }
  for (const AgreementCore::Taken& taken : decide()) {
    EXPECT_TRUE(taken.runnables.empty());
    ASSERT_EQ(taken.refused.size(), 1U);
    EXPECT_EQ(taken.refused[0].pending->request.name, "odd");
    EXPECT_FALSE(taken.refused[0].reason.empty());
  }
}

TEST_F(WorldOfCores, NewGroupIsKnownToAllRanksAndItsMembersCanUseIt) {
  for (int rank = 0; rank < kSize; ++rank) {
    report(rank, request("group", Kind::kAddGroup, {2, 0}));
  }
  const auto taken = decide();
  for (int rank = 0; rank < kSize; ++rank) {
    const auto& added = taken[static_cast<size_t>(rank)].added;
    ASSERT_EQ(added.size(), 1U);
    EXPECT_EQ(added[0].members, (std::vector<int>{0, 2}));
    EXPECT_EQ(core(rank).group(added[0].id) != nullptr, rank != 1);
  }
}

TEST_F(WorldOfCores, RankThatHasJoinedRunsAbsentPart) {
  report(1, request("join", Kind::kJoin, {}));
  report(0, request("gradient"));
  report(2, request("gradient"));
  const auto taken = decide();
  ASSERT_EQ(taken[1].runnables.size(), 1U);
  EXPECT_EQ(taken[1].runnables[0].pending->completion, nullptr);
  EXPECT_NE(taken[0].runnables.at(0).pending->completion, nullptr);
  EXPECT_FALSE(taken[1].joined) << "the others have not";
}

TEST_F(WorldOfCores, WhatWasTakenBeforeErrorIsNotLost) {
  report(1, request("first"));
  Decision decision;
  decision.number = 1;
  for (const char* name : {"first", "never asked for"}) {
    decision.agreed.push_back({kNoBit, name, request(name)->request.signature, {}});
  }
  AgreementCore::Taken taken;
  EXPECT_THROW(core(1).take(decision, taken), base::Error);
  ASSERT_EQ(taken.runnables.size(), 1U);
  EXPECT_EQ(taken.runnables[0].pending->request.name, "first");
}

}  // namespace
}  // namespace farandole::engine
