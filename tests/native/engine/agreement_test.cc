// The pure parts of agreement: messages, response cache, coordinator, fusion. No threads.
#include <gtest/gtest.h>

#include <bit>

#include "base/error.h"
#include "engine/coordinator.h"
#include "engine/events.h"
#include "engine/fusion.h"
#include "engine/messages.h"

namespace farandole::engine {
namespace {

Signature tensor(std::vector<int64_t> shape, Kind kind = Kind::kAllreduce) {
  Signature signature;
  signature.kind = kind;
  signature.shape = std::move(shape);
  return signature;
}

Ready fresh(const std::string& name, Signature signature, uint32_t group = 0) {
  Ready ready;
  ready.fresh.push_back({group, name, std::move(signature)});
  return ready;
}

Ready known(uint32_t bit, uint32_t group = 0) {
  Ready ready;
  BitSet bits;
  bits.set(bit);
  ready.known.push_back({group, bits});
  return ready;
}

std::vector<uint32_t> bits_of(const BitSet& set) {
  std::vector<uint32_t> bits;
  set.for_each([&](uint32_t bit) { bits.push_back(bit); });
  return bits;
}

// All ranks report the same; gives the one decision that comes of it.
Decision agree(Coordinator& coordinator, int size, const Ready& ready) {
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_TRUE(coordinator.decide().empty()) << "decided before rank " << rank << " was ready";
    coordinator.receive(rank, ready);
  }
  const auto decisions = coordinator.decide();
  EXPECT_EQ(decisions.size(), 1U);
  return decisions.at(0);
}

TEST(Messages, SurviveTheWire) {
  Ready ready = known(130, 7);
  ready.fresh.push_back({3, "a name", tensor({2, 3}, Kind::kBroadcast)});
  ready.fresh[0].signature.root = 5;
  ready.fresh[0].signature.prescale = 0.1;
  ready.fresh[0].signature.peer = 6;
  ready.fresh.push_back({3, "noname.7", tensor({2}), /*recurs=*/true});
  ready.leaving = true;
  ready.age_ns = 12;
  ready.answers.push_back({3, true, "train.py:7"});
  ready.introductions.push_back({5, {std::byte{1}, std::byte{2}}});
  ready.formed.push_back({5, "no"});
  const Ready again = decode_ready(encode(ready));
  EXPECT_EQ(bits_of(again.known.at(0).bits), (std::vector<uint32_t>{130}));
  EXPECT_EQ(again.known[0].group, 7U);
  EXPECT_EQ(again.fresh.at(0).name, "a name");
  EXPECT_EQ(again.fresh[0].signature, ready.fresh[0].signature);
  EXPECT_FALSE(again.fresh[0].recurs);
  EXPECT_TRUE(again.fresh.at(1).recurs);
  EXPECT_TRUE(again.leaving);
  EXPECT_FALSE(again.finished);
  EXPECT_EQ(again.age_ns, 12);
  ready.age_ns = INT64_MIN;
  EXPECT_EQ(decode_ready(encode(ready)).age_ns, 0) << "subtracted from the time, it would overflow";
  ready.age_ns = INT64_MAX;
  EXPECT_LT(decode_ready(encode(ready)).age_ns, INT64_MAX / 1000) << "the ages of many requests are added";
  EXPECT_EQ(again.answers.at(0).query, 3U);
  EXPECT_TRUE(again.answers[0].of_program);
  EXPECT_EQ(again.answers[0].text, "train.py:7");
  EXPECT_EQ(again.introductions.at(0).group, 5U);
  EXPECT_EQ(again.introductions[0].bytes, ready.introductions[0].bytes);
  EXPECT_EQ(again.formed.at(0).group, 5U);
  EXPECT_EQ(again.formed[0].error, "no");

  Decision decision;
  decision.group = 9;
  decision.known.set(64);
  decision.agreed.push_back({4, "b", tensor({0, 8}, Kind::kAllgather), {1, 2, 3}});
  decision.refused.push_back({"c", "because", {0, 2}});
  decision.absent = {1};
  decision.settling_ns = 77;
  decision.last_rank = 2;
  const Decision same = decode_decision(encode(decision));
  EXPECT_EQ(same.group, 9U);
  EXPECT_EQ(bits_of(same.known), (std::vector<uint32_t>{64}));
  EXPECT_EQ(same.agreed.at(0).sizes, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(same.agreed[0].bit, 4U);
  EXPECT_EQ(same.refused.at(0).reason, "because");
  EXPECT_EQ(same.refused[0].asked, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(same.absent, (std::vector<int32_t>{1}));
  EXPECT_EQ(same.settling_ns, 77);
  EXPECT_EQ(same.last_rank, 2);

  Decision query;
  query.type = Decision::Type::kStallQuery;
  query.query = 5;
  EXPECT_EQ(decode_decision(encode(query)).query, 5U);

  Decision form;
  form.type = Decision::Type::kForm;
  form.group = 5;
  form.key = {std::byte{7}};
  EXPECT_EQ(decode_decision(encode(form)).group, 5U);
  EXPECT_EQ(decode_decision(encode(form)).key, form.key);

  Decision use;
  use.type = Decision::Type::kUseFormed;
  use.group = 6;
  use.obstacle = "why";
  EXPECT_EQ(decode_decision(encode(use)).group, 6U);
  EXPECT_EQ(decode_decision(encode(use)).obstacle, "why");
}

TEST(Messages, MalformedOnesAreErrors) {
  const base::Bytes good = encode(fresh("name", tensor({1})));
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_THROW(decode_ready(std::span(good).first(length)), base::Error);
  }
  base::Bytes long_one = good;
  long_one.push_back(std::byte{0});
  EXPECT_THROW(decode_ready(long_one), base::Error);
  const base::Bytes nonsense(40, std::byte{0xff});
  EXPECT_THROW(decode_ready(nonsense), base::Error);
  EXPECT_THROW(decode_decision(nonsense), base::Error);
}

Ready introduction(uint32_t group) {
  Ready ready;
  ready.introductions.push_back({group, {std::byte{1}}});
  return ready;
}

Ready formed(uint32_t group, const std::string& error = "") {
  Ready ready;
  ready.formed.push_back({group, error});
  return ready;
}

Signature on_device() {
  Signature signature = tensor({4});
  signature.memory = backend::MemoryKind::kDevice;
  return signature;
}

TEST(Coordinator, AGroupIsIntroducedWhenAllMembersAre) {
  Coordinator coordinator(2);
  coordinator.receive(1, introduction(0));
  EXPECT_TRUE(coordinator.formations().take_introduced().empty());
  coordinator.receive(0, introduction(0));
  const auto all = coordinator.formations().take_introduced();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].members, (std::vector<int>{0, 1}));
  EXPECT_EQ(all[0].introductions.size(), 2U);
  EXPECT_TRUE(coordinator.formations().take_introduced().empty());
}

TEST(Coordinator, WhatIsFormedIsUsedWhenAllHaveAndTheFirstErrorCounts) {
  for (const bool fails : {false, true}) {
    Coordinator coordinator(3);
    for (int rank = 0; rank < 3; ++rank) {
      coordinator.receive(rank, introduction(0));
    }
    coordinator.receive(0, formed(0));
    coordinator.receive(2, formed(0, fails ? "broken" : ""));
    EXPECT_TRUE(coordinator.decide().empty());
    coordinator.receive(1, formed(0, fails ? "broken, too" : ""));
    const std::vector<Decision> decisions = coordinator.decide();
    ASSERT_EQ(decisions.size(), 1U);
    EXPECT_EQ(decisions[0].type, Decision::Type::kUseFormed);
    EXPECT_EQ(decisions[0].obstacle, fails ? "rank 2: broken" : "");
  }
}

TEST(Coordinator, WhatComesOfARemovedGroupIsNothing) {
  Coordinator coordinator(2);
  coordinator.receive(0, introduction(17));
  coordinator.receive(0, formed(17));
  EXPECT_TRUE(coordinator.decide().empty());
}

TEST(Coordinator, WhatWasFormedInAGroupThatIsRemovedIsForgotten) {
  Coordinator coordinator(3, true);
  const auto add = [&] {
    Signature group;
    group.kind = Kind::kAddGroup;
    group.shape = {0, 1};
    return static_cast<uint32_t>(agree(coordinator, 3, fresh("add", group)).agreed.at(0).sizes.at(0));
  };
  const uint32_t id = add();
  for (int rank = 0; rank < 2; ++rank) {
    coordinator.receive(rank, introduction(id));
    coordinator.receive(rank, formed(id));
  }
  Signature gone;
  gone.kind = Kind::kRemoveGroup;
  gone.shape = {id};
  for (int rank = 0; rank < 3; ++rank) {
    coordinator.receive(rank, fresh("remove", gone));
  }
  for (const Decision& decision : coordinator.decide()) {
    EXPECT_TRUE(decision.refused.empty());
  }
  EXPECT_EQ(add(), id);
  EXPECT_TRUE(coordinator.decide().empty());
}

TEST(Coordinator, HoldsBackWhatIsOnGpusUntilItIsSettled) {
  for (const bool waits : {false, true}) {
    Coordinator coordinator(2, waits);
    for (int rank = 0; rank < 2; ++rank) {
      coordinator.receive(rank, introduction(0));
      coordinator.receive(rank, fresh("on GPUs", on_device()));
      coordinator.receive(rank, fresh("on the host", tensor({4})));
    }
    std::vector<Decision> decisions = coordinator.decide();
    ASSERT_EQ(decisions.size(), 1U);
    EXPECT_EQ(decisions[0].agreed.size(), waits ? 1U : 2U);
    EXPECT_FALSE(coordinator.something_waits());
    coordinator.receive(0, formed(0));
    coordinator.receive(1, formed(0));
    decisions = coordinator.decide();
    ASSERT_EQ(decisions.size(), waits ? 2U : 1U);
    EXPECT_EQ(decisions[0].type, Decision::Type::kUseFormed);
    if (waits) {
      EXPECT_EQ(decisions[1].agreed.at(0).name, "on GPUs");
    }
  }
}

TEST(Coordinator, HoldsBackNothingThatIsAMismatch) {
  Coordinator coordinator(2, true);
  coordinator.receive(0, introduction(0));
  coordinator.receive(1, introduction(0));
  coordinator.receive(0, fresh("x", on_device()));
  coordinator.receive(1, fresh("x", tensor({4})));
  const std::vector<Decision> decisions = coordinator.decide();
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_EQ(decisions[0].refused.size(), 1U);
}

TEST(Coordinator, GivesABitTheSecondTime) {
  Coordinator coordinator(3);
  EXPECT_EQ(agree(coordinator, 3, fresh("x", tensor({4}))).agreed.at(0).bit, kNoBit);
  EXPECT_EQ(agree(coordinator, 3, fresh("x", tensor({4}))).agreed.at(0).bit, 0U);
  const Decision third = agree(coordinator, 3, known(0));
  EXPECT_EQ(bits_of(third.known), (std::vector<uint32_t>{0}));
  EXPECT_TRUE(third.agreed.empty());
}

TEST(Coordinator, GivesRecurringNameItsBitAtOnce) {
  Ready recurring = fresh("noname.0", tensor({4}));
  recurring.fresh[0].recurs = true;
  Coordinator coordinator(3);
  EXPECT_EQ(agree(coordinator, 3, recurring).agreed.at(0).bit, 0U);
  EXPECT_EQ(bits_of(agree(coordinator, 3, known(0)).known), (std::vector<uint32_t>{0}));
}

// Which rank it is does not matter, so a decision depends on the reports and not on their order.
TEST(Coordinator, NameRecursIfAnyRankSaysSo) {
  for (int which = 0; which < 3; ++which) {
    Coordinator coordinator(3);
    for (int rank = 0; rank < 3; ++rank) {
      Ready ready = fresh("x", tensor({4}));
      ready.fresh[0].recurs = rank == which;
      coordinator.receive(rank, ready);
    }
    EXPECT_EQ(coordinator.decide().at(0).agreed.at(0).bit, 0U) << "rank " << which << " says so";
  }
}

TEST(Coordinator, AKnownNameMayChangeItsShape) {
  Coordinator coordinator(2);
  agree(coordinator, 2, fresh("x", tensor({4})));
  agree(coordinator, 2, fresh("x", tensor({4})));
  const Decision changed = agree(coordinator, 2, fresh("x", tensor({5})));
  EXPECT_EQ(changed.agreed.at(0).bit, 0U) << "the bit stays";
  EXPECT_EQ(changed.agreed[0].signature.shape, (std::vector<int64_t>{5}));
  EXPECT_EQ(bits_of(agree(coordinator, 2, known(0)).known), (std::vector<uint32_t>{0}));
}

TEST(Coordinator, ABitAgainstAnotherShapeIsAMismatchThatNamesRanks) {
  Coordinator coordinator(3);
  agree(coordinator, 3, fresh("x", tensor({4})));
  agree(coordinator, 3, fresh("x", tensor({4})));
  coordinator.receive(0, known(0));
  coordinator.receive(1, fresh("x", tensor({9})));
  coordinator.receive(2, known(0));
  const auto decisions = coordinator.decide();
  EXPECT_EQ(decisions.at(0).refused.at(0).reason,
            "Mismatched allreduce tensor shapes for 'x': ranks 0 and 2 sent a tensor of shape [4], but rank 1 sent a "
            "tensor of shape [9].");
  EXPECT_EQ(bits_of(agree(coordinator, 3, known(0)).known), (std::vector<uint32_t>{0})) << "the job goes on";
}

TEST(Coordinator, EveryMismatchSaysWhatDiffers) {
  const auto mismatch = [](Signature a, Signature b) {
    const std::vector<int> members = {0, 1};
    const std::vector<Signature> sent = {std::move(a), std::move(b)};
    return find_mismatch("x", members, sent).value_or("none");
  };
  Signature base = tensor({2});
  Signature other = base;
  other.dtype = reduce::Dtype::kF64;
  EXPECT_EQ(mismatch(base, other), "Mismatched data types for 'x': rank 0 sent float32, but rank 1 sent float64.");
  other.opaque = {"uint32", 4};
  EXPECT_EQ(mismatch(base, other), "Mismatched data types for 'x': rank 0 sent float32, but rank 1 sent uint32.");
  EXPECT_EQ(mismatch(base, tensor({2}, Kind::kBroadcast)),
            "Mismatched operations for 'x': rank 0 did allreduce, but rank 1 did broadcast.");
  other = base;
  other.prescale = 0.5;
  EXPECT_EQ(mismatch(base, other),
            "Mismatched prescale and/or postscale factors for 'x': rank 0 sent factors (1, 1), but rank 1 sent factors "
            "(0.5, 1).");
  other = base;
  other.op = ReduceOp::kMax;
  EXPECT_EQ(mismatch(base, other),
            "Mismatched reduction operation for 'x': rank 0 asked for Sum, but rank 1 asked for Max.");
  Signature rooted = tensor({2}, Kind::kBroadcast);
  Signature elsewhere = rooted;
  elsewhere.root = 1;
  EXPECT_EQ(mismatch(rooted, elsewhere),
            "Mismatched broadcast root ranks for 'x': rank 0 specified root rank 0, but rank 1 specified root rank 1.");
  EXPECT_EQ(mismatch(tensor({2, 3}, Kind::kAllgather), tensor({7, 3}, Kind::kAllgather)), "none");
  EXPECT_EQ(mismatch(tensor({2, 3}, Kind::kAllgather), tensor({2, 4}, Kind::kAllgather)),
            "Mismatched allgather tensor shapes (only the first dimension may differ) for 'x': rank 0 sent a tensor of "
            "shape [2, 3], but rank 1 sent a tensor of shape [2, 4].");
  EXPECT_EQ(
      mismatch(tensor({2, 3}, Kind::kAllgather), tensor({2}, Kind::kAllgather)),
      "Mismatched allgather tensor shapes for 'x': rank 0 sent a tensor of 2 dimensions, but rank 1 sent a tensor "
      "of 1 dimension.");
}

TEST(Coordinator, AllgatherCollectsFirstDimensions) {
  Coordinator coordinator(3);
  for (int rank = 0; rank < 3; ++rank) {
    coordinator.receive(rank, fresh("g", tensor({rank * 2, 5}, Kind::kAllgather)));
  }
  const auto decisions = coordinator.decide();
  EXPECT_EQ(decisions.at(0).agreed.at(0).sizes, (std::vector<int64_t>{0, 2, 4}));
  EXPECT_EQ(decisions[0].agreed[0].signature.shape, (std::vector<int64_t>{0, 5}));
}

TEST(Coordinator, ASlowGroupHoldsNobodyUp) {
  Coordinator coordinator(4);
  agree(coordinator, 4, fresh("add", tensor({0, 1}, Kind::kAddGroup)));
  agree(coordinator, 4, fresh("add2", tensor({1, 2, 3}, Kind::kAddGroup)));
  coordinator.receive(0, fresh("slow", tensor({1}), 1));
  for (const int rank : {3, 1, 2}) {
    coordinator.receive(rank, fresh("fast", tensor({1}), 2));
  }
  const auto decisions = coordinator.decide();
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_EQ(decisions[0].group, 2U);
  const auto waiting = coordinator.waiting();
  ASSERT_EQ(waiting.size(), 1U);
  EXPECT_EQ(waiting[0].name, "slow");
  EXPECT_EQ(waiting[0].missing, (std::vector<int>{1}));
}

TEST(Coordinator, GroupsAreCheckedAndIdsReused) {
  Coordinator coordinator(3);
  const auto add = [&](std::vector<int64_t> ranks) {
    return agree(coordinator, 3, fresh("add", tensor(std::move(ranks), Kind::kAddGroup)));
  };
  EXPECT_EQ(add({0, 1}).agreed.at(0).sizes, (std::vector<int64_t>{1}));
  EXPECT_EQ(add({1, 2}).agreed.at(0).sizes, (std::vector<int64_t>{2}));
  EXPECT_NE(add({1, 0}).refused.at(0).reason.find("duplicate process set"), std::string::npos);
  EXPECT_NE(add({0, 1, 2}).refused.at(0).reason.find("duplicate process set"), std::string::npos);
  EXPECT_NE(add({0, 3}).refused.at(0).reason.find("cannot hold rank 3"), std::string::npos);
  EXPECT_NE(add({1, 1}).refused.at(0).reason.find("each rank once"), std::string::npos);
  EXPECT_NE(add({}).refused.at(0).reason.find("at least one rank"), std::string::npos);
  const auto remove = [&](int64_t id) {
    return agree(coordinator, 3, fresh("remove", tensor({id}, Kind::kRemoveGroup)));
  };
  coordinator.receive(0, fresh("pending", tensor({1}), 1));
  EXPECT_NE(remove(1).refused.at(0).reason.find("'pending'"), std::string::npos);
  coordinator.receive(1, fresh("pending", tensor({1}), 1));
  coordinator.decide();
  EXPECT_EQ(remove(1).agreed.size(), 1U);
  EXPECT_EQ(remove(1).refused.size(), 1U) << "it is gone already";
  EXPECT_EQ(add({0, 2}).agreed.at(0).sizes, (std::vector<int64_t>{1})) << "the id is free again";
}

TEST(Coordinator, NonsenseIsAnError) {
  Coordinator coordinator(2);
  EXPECT_THROW(coordinator.receive(0, known(0)), base::Error);
  EXPECT_THROW(coordinator.receive(0, fresh("x", tensor({1}), 5)), base::Error);
  coordinator.receive(0, fresh("x", tensor({1})));
  EXPECT_THROW(coordinator.receive(0, fresh("x", tensor({1}))), base::Error);
}

TEST(Coordinator, LeavingEndsTheWorldInTwoSteps) {
  Coordinator coordinator(2);
  Ready leaving;
  leaving.leaving = true;
  coordinator.receive(1, leaving);
  coordinator.receive(0, leaving);
  const auto left = coordinator.decide();
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].type, Decision::Type::kLeft);
  EXPECT_EQ(left[0].left_rank, 1);
  Ready finished;
  finished.finished = true;
  coordinator.receive(0, finished);
  coordinator.receive(1, fresh("too late", tensor({1})));
  EXPECT_TRUE(coordinator.decide().empty());
  coordinator.receive(1, finished);
  const auto gone = coordinator.decide();
  ASSERT_EQ(gone.size(), 1U);
  EXPECT_EQ(gone[0].type, Decision::Type::kGone);
}

// --- reports of many ranks

Report of_ranks(int first, int last, Ready ready) {
  return {RankSet::from_pairs({first, last}), last, ready.age_ns, std::move(ready)};
}

TEST(MemberSet, RangesOfAnyLengthAreAddedOnce) {
  for (const MemberSet::Range range : {MemberSet::Range{0, 0}, {63, 64}, {5, 62}, {64, 127}, {1, 199}, {0, 199}}) {
    MemberSet set;
    set.reset(200);
    ASSERT_TRUE(set.add(range));
    for (size_t index = 0; index < 200; ++index) {
      EXPECT_EQ(set.contains(index), index >= range.first && index <= range.last) << index;
    }
    EXPECT_FALSE(set.add(range));
    EXPECT_FALSE(set.add({range.last, 199}));
    EXPECT_EQ(set.contains(199), range.last == 199) << "unchanged";
    set.reset(200);
    EXPECT_FALSE(set.contains(range.first));
  }
}

// A world in which "x" has bit 0.
class CoordinatorOfTwoHundred : public ::testing::Test {
 protected:
  static constexpr int kSize = 200;

  CoordinatorOfTwoHundred() {
    agree(coordinator_, kSize, fresh("x", tensor({4})));
    agree(coordinator_, kSize, fresh("x", tensor({4})));
  }

  Coordinator coordinator_{kSize};
};

TEST_F(CoordinatorOfTwoHundred, ReportCountsForAllItsRanks) {
  coordinator_.receive(of_ranks(0, 99, known(0)));
  coordinator_.receive(of_ranks(101, 199, known(0)));
  EXPECT_TRUE(coordinator_.decide().empty());
  ASSERT_EQ(coordinator_.waiting().size(), 1U);
  EXPECT_EQ(coordinator_.waiting()[0].missing, std::vector<int>{100});
  coordinator_.receive(100, known(0));
  const auto decisions = coordinator_.decide();
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_EQ(bits_of(decisions[0].known), std::vector<uint32_t>{0});
}

TEST_F(CoordinatorOfTwoHundred, LastRankOfReportIsLastOne) {
  Report first = of_ranks(0, 98, known(0));
  first.last_rank = 7;
  first.first_age_ns = 50;
  first.ready.age_ns = 10;
  coordinator_.receive(first, 100);
  Report second = of_ranks(99, 199, known(0));
  second.first_age_ns = 90;
  second.ready.age_ns = 30;
  coordinator_.receive(second, 105);
  const Decision decision = coordinator_.decide(200).at(0);
  EXPECT_EQ(decision.last_rank, 7);
  EXPECT_EQ(decision.settling_ns, 110);
}

TEST_F(CoordinatorOfTwoHundred, RankThatAsksTwiceIsNonsense) {
  coordinator_.receive(of_ranks(0, 99, known(0)));
  EXPECT_THROW(coordinator_.receive(of_ranks(99, 120, known(0))), base::Error);
}

TEST_F(CoordinatorOfTwoHundred, RangeWithRankThatIsNoMemberIsNonsense) {
  const auto added = agree(coordinator_, kSize, fresh("g", tensor({1, 2, 4}, Kind::kAddGroup)));
  const auto group = static_cast<uint32_t>(added.agreed.at(0).sizes.at(0));
  for (int time = 0; time < 2; ++time) {
    coordinator_.receive(of_ranks(1, 2, fresh("y", tensor({4}), group)));
    coordinator_.receive(4, fresh("y", tensor({4}), group));
    ASSERT_EQ(coordinator_.decide().size(), 1U);
  }
  coordinator_.receive(of_ranks(1, 2, known(0, group)));
  EXPECT_THROW(coordinator_.receive(of_ranks(3, 4, known(0, group))), base::Error);
  EXPECT_THROW(coordinator_.receive(of_ranks(2, 4, known(0, group))), base::Error);
  coordinator_.receive(4, known(0, group));
  EXPECT_EQ(coordinator_.decide().size(), 1U);
}

TEST_F(CoordinatorOfTwoHundred, ReportOfBitGoesWithRanksThatDifferAndRanksThatHaveJoined) {
  coordinator_.receive(of_ranks(0, 99, known(0)));
  coordinator_.receive(150, fresh("x", tensor({5})));
  coordinator_.receive(of_ranks(100, 149, known(0)));
  coordinator_.receive(of_ranks(151, 199, known(0)));
  const auto refused = coordinator_.decide();
  ASSERT_EQ(refused.at(0).refused.size(), 1U);
  EXPECT_EQ(refused[0].refused[0].asked.size(), static_cast<size_t>(kSize));

  coordinator_.receive(of_ranks(0, 99, known(0)));
  coordinator_.receive(3 * kSize / 4, fresh("join", tensor({}, Kind::kJoin)));
  coordinator_.receive(of_ranks(100, 149, known(0)));
  coordinator_.receive(of_ranks(151, 199, known(0)));
  const auto decisions = coordinator_.decide();
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_EQ(decisions[0].absent, std::vector<int32_t>{150});
}

using Plan = std::vector<std::vector<size_t>>;

TEST(Fusion, FillsBucketsUpToTheThreshold) {
  const std::vector<Fusible> same = {{40, {1}}, {40, {1}}, {40, {1}}, {40, {1}}};
  EXPECT_EQ(plan_buckets(same, 100), (Plan{{0, 1}, {2, 3}}));
  EXPECT_EQ(plan_buckets(same, 0), (Plan{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(plan_buckets(same, 1000), (Plan{{0, 1, 2, 3}}));
  const std::vector<Fusible> mixed = {{10, {1}},  {10, {2}}, {10, {1}}, {10, {1}, true},
                                      {500, {1}}, {10, {2}}, {10, {1}}};
  EXPECT_EQ(plan_buckets(mixed, 100), (Plan{{0, 2, 6}, {1, 5}, {3}, {4}}));
  EXPECT_EQ(plan_buckets({}, 100), Plan{});
}

TEST(Events, LastEventsAreKeptAndLostOnesCounted) {
  Events events;
  const uint32_t number = events.number_of("x", {});
  EXPECT_EQ(events.number_of("x", {}), number);
  EXPECT_EQ(events.name_of(number), "x");
  EXPECT_EQ(events.name_of(kNone), "");
  for (uint64_t i = 0; i < 20'000; ++i) {
    Event event;
    event.bytes = i;
    events.record(event);
  }
  uint64_t cursor = 0;
  uint64_t lost = 0;
  std::vector<Event> read(20'000);
  const size_t count = events.read(cursor, read, lost);
  EXPECT_EQ(count + lost, 20'000U);
  EXPECT_EQ(read[0].bytes, lost);
  EXPECT_EQ(read[count - 1].bytes, 19'999U);
  EXPECT_EQ(events.read(cursor, read, lost), 0U);
}

// What is compared are the values, not a hash of them: these two had one hash, and shared a bucket with the factors of
// the first one.
TEST(Fusion, KeysWithSameHashAreNotFused) {
  constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15U;
  const auto bits = [](double factor) { return std::bit_cast<uint64_t>(factor); };
  Signature one = tensor({4});
  one.prescale = 2;
  one.postscale = 3;
  Signature other = one;
  other.prescale = 4;
  const uint64_t start = static_cast<uint64_t>(one.dtype) | static_cast<uint64_t>(one.op) << 8;
  const auto after_prescale = [&](const Signature& s) { return start * kMultiplier ^ bits(s.prescale); };
  other.postscale = std::bit_cast<double>(bits(one.postscale) ^ after_prescale(one) * kMultiplier ^
                                          after_prescale(other) * kMultiplier);
  const auto old_hash = [&](const Signature& s) { return after_prescale(s) * kMultiplier ^ bits(s.postscale); };
  ASSERT_EQ(old_hash(one), old_hash(other));
  EXPECT_EQ(
      plan_buckets(std::vector<Fusible>{{16, fusion_key(one, nullptr, 0)}, {16, fusion_key(other, nullptr, 0)}}, 1000),
      (Plan{{0}, {1}}));
  EXPECT_EQ(
      plan_buckets(std::vector<Fusible>{{16, fusion_key(one, nullptr, 0)}, {16, fusion_key(one, nullptr, 0)}}, 1000),
      (Plan{{0, 1}}));
}

TEST(Fusion, DifferentBackendsAndAlgorithmsAreNotFused) {
  const Signature base = tensor({4});
  EXPECT_NE(fusion_key(base, nullptr, 0), fusion_key(base, nullptr, 1));
  EXPECT_NE(fusion_key(base, nullptr, 0), fusion_key(base, &base, 0));
}

}  // namespace
}  // namespace farandole::engine
