// Ranks that have joined: what goes on without them, what fails, and that they can join again.
#include <gtest/gtest.h>

#include <atomic>

#include "engine/coordinator.h"
#include "support/worlds.h"

namespace farandole {
namespace {

using base::Code;
using base::Error;
using engine::Coordinator;
using engine::Decision;
using engine::Engine;
using engine::Handle;
using engine::Kind;
using engine::Ready;
using engine::ReduceOp;
using engine::Signature;
using reduce::Dtype;
using testing::allreduce_request;
using testing::finish;
using testing::in_world;
using World = testing::Kind;

// --- the coordinator -------------------------------------------------------------------------------------------------

Signature tensor(Kind kind, std::vector<int64_t> shape = {2}) {
  Signature signature;
  signature.kind = kind;
  signature.shape = std::move(shape);
  return signature;
}

Ready ask(const std::string& name, Kind kind = Kind::kAllreduce, uint32_t group = 0) {
  Ready ready;
  ready.fresh.push_back({group, name, tensor(kind)});
  return ready;
}

Ready join() {
  Ready ready;
  ready.fresh.push_back({0, "join", tensor(Kind::kJoin, {})});
  return ready;
}

Ready bit(uint32_t number) {
  Ready ready;
  engine::BitSet bits;
  bits.set(number);
  ready.known.push_back({0, bits});
  return ready;
}

void add_group(Coordinator& coordinator, int size, std::vector<int64_t> ranks) {
  Ready ready;
  ready.fresh.push_back({0, "add", tensor(Kind::kAddGroup, std::move(ranks))});
  for (int rank = 0; rank < size; ++rank) {
    coordinator.receive(rank, ready);
  }
  ASSERT_EQ(coordinator.decide().at(0).agreed.size(), 1U);
}

TEST(JoinDecisions, AllreduceGoesOnWithoutJoinedRanks) {
  Coordinator coordinator(4);
  coordinator.receive(1, join());
  coordinator.receive(0, ask("x"));
  coordinator.receive(2, ask("x"));
  EXPECT_TRUE(coordinator.decide().empty()) << "rank 3 may still come";
  coordinator.receive(3, ask("x"));
  const auto decisions = coordinator.decide();
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_EQ(decisions[0].absent, (std::vector<int32_t>{1}));
  EXPECT_EQ(decisions[0].agreed.at(0).name, "x");
}

TEST(JoinDecisions, WaitingRequestRunsWhenLastMissingRankJoins) {
  Coordinator coordinator(3);
  coordinator.receive(0, ask("x"));
  coordinator.receive(0, ask("g", Kind::kAllgather));
  coordinator.receive(2, join());
  auto decisions = coordinator.decide();
  ASSERT_EQ(decisions.size(), 1U) << "the allgather fails, the allreduce still waits";
  EXPECT_EQ(decisions[0].refused.at(0).reason,
            "allgather 'g' is not supported while a rank has joined: rank 2 has called join(). Call it on all ranks "
            "before the first one joins, or after all have.");
  EXPECT_EQ(decisions[0].refused[0].asked, (std::vector<int32_t>{0}));
  coordinator.receive(1, join());
  decisions = coordinator.decide();
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_EQ(decisions[0].absent, (std::vector<int32_t>{1, 2}));
}

TEST(JoinDecisions, RequestMadeBeforeJoinCounts) {
  Coordinator coordinator(2);
  coordinator.receive(1, ask("x"));
  coordinator.receive(1, ask("g", Kind::kAllgather));
  coordinator.receive(1, join());
  EXPECT_TRUE(coordinator.decide().empty());
  coordinator.receive(0, ask("x"));
  coordinator.receive(0, ask("y"));
  coordinator.receive(0, ask("g", Kind::kAllgather));
  const auto decisions = coordinator.decide();
  ASSERT_EQ(decisions.size(), 2U) << "one decision for each set of absent ranks";
  EXPECT_TRUE(decisions[0].absent.empty());
  EXPECT_EQ(decisions[0].agreed.size(), 2U) << "x, and the allgather for which nobody is missing";
  EXPECT_EQ(decisions[1].absent, (std::vector<int32_t>{1}));
  EXPECT_EQ(decisions[1].agreed.at(0).name, "y");
}

TEST(JoinDecisions, OtherKindsFailOnRanksThatAsk) {
  for (const Kind kind : {Kind::kAllgather, Kind::kBroadcast, Kind::kBarrier, Kind::kAlltoall, Kind::kReducescatter,
                          Kind::kAddGroup, Kind::kRemoveGroup}) {
    Coordinator coordinator(3);
    coordinator.receive(2, join());
    for (const int rank : {0, 1}) {
      coordinator.receive(rank, ask("x", kind));
      const auto decisions = coordinator.decide();
      ASSERT_EQ(decisions.size(), 1U);
      const Decision::Refused& refused = decisions[0].refused.at(0);
      EXPECT_EQ(refused.asked, (std::vector<int32_t>{rank}));
      EXPECT_NE(refused.reason.find(std::string(name_of(kind)) + " 'x' is not supported"), std::string::npos);
    }
  }
}

TEST(JoinDecisions, TransferFailsOnlyIfOneOfItsRanksHasJoined) {
  Coordinator coordinator(3);
  coordinator.receive(2, join());
  const auto transfer = [](int root, int peer) {
    Ready ready = ask("t (" + std::to_string(root) + " to " + std::to_string(peer) + ")", Kind::kTransfer);
    ready.fresh[0].signature.root = root;
    ready.fresh[0].signature.peer = peer;
    return ready;
  };
  coordinator.receive(0, transfer(0, 1));
  EXPECT_TRUE(coordinator.decide().empty());
  coordinator.receive(1, transfer(0, 1));
  EXPECT_EQ(coordinator.decide().at(0).agreed.size(), 1U);
  coordinator.receive(1, transfer(2, 1));
  EXPECT_EQ(coordinator.decide().at(0).refused.at(0).asked, (std::vector<int32_t>{1}));
}

TEST(JoinDecisions, GroupsGoOnWithoutJoinedMembers) {
  Coordinator coordinator(4);
  add_group(coordinator, 4, {1, 2});
  add_group(coordinator, 4, {2, 3});
  coordinator.receive(1, join());
  coordinator.receive(2, ask("x", Kind::kAllreduce, 1));
  coordinator.receive(2, ask("b", Kind::kBroadcast, 2));
  auto decisions = coordinator.decide();
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_EQ(decisions[0].group, 1U);
  EXPECT_EQ(decisions[0].absent, (std::vector<int32_t>{1}));
  coordinator.receive(3, ask("b", Kind::kBroadcast, 2));
  decisions = coordinator.decide();
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_TRUE(decisions[0].absent.empty()) << "nobody of the second group has joined";
}

TEST(JoinDecisions, LastRankToJoinIsNamedAndAllRanksContinue) {
  Coordinator coordinator(3);
  for (const std::vector<int>& order : {std::vector<int>{2, 0, 1}, {0, 1, 2}, {1, 2, 0}}) {
    for (const int rank : order) {
      EXPECT_TRUE(coordinator.decide().empty());
      coordinator.receive(rank, join());
    }
    const auto decisions = coordinator.decide();
    ASSERT_EQ(decisions.size(), 1U);
    EXPECT_EQ(decisions[0].agreed.at(0).signature.kind, Kind::kJoin);
    EXPECT_EQ(decisions[0].agreed[0].sizes, (std::vector<int64_t>{order.back()}));
    coordinator.receive(0, ask("g", Kind::kAllgather));
    EXPECT_TRUE(coordinator.decide().empty()) << "nobody has joined any more";
    coordinator.receive(1, ask("g", Kind::kAllgather));
    coordinator.receive(2, ask("g", Kind::kAllgather));
    EXPECT_EQ(coordinator.decide().size(), 1U);
  }
  EXPECT_THROW(
      {
        coordinator.receive(1, join());
        coordinator.receive(1, join());
      },
      Error);
}

TEST(JoinDecisions, KnownRequestsStayKnown) {
  Coordinator coordinator(3);
  for (int step = 0; step < 2; ++step) {
    for (int rank = 0; rank < 3; ++rank) {
      coordinator.receive(rank, ask("x"));
    }
    coordinator.decide();
  }
  coordinator.receive(2, join());
  coordinator.receive(0, bit(0));
  coordinator.receive(1, bit(0));
  const auto decisions = coordinator.decide();
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_FALSE(decisions[0].known.empty());
  EXPECT_EQ(decisions[0].absent, (std::vector<int32_t>{2}));
}

TEST(JoinDecisions, LateRequestOfJoinedRankWaitsForNextOne) {
  // Its request and the decision without it cross each other.
  Coordinator coordinator(2);
  coordinator.receive(1, join());
  coordinator.receive(0, ask("x"));
  coordinator.receive(1, ask("x"));
  const auto first = coordinator.decide();
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].absent, (std::vector<int32_t>{1}));
  coordinator.receive(0, ask("x"));
  const auto second = coordinator.decide();
  ASSERT_EQ(second.size(), 1U);
  EXPECT_TRUE(second[0].absent.empty());
}

TEST(JoinDecisions, MismatchesAreStillFound) {
  Coordinator coordinator(3);
  coordinator.receive(0, join());
  coordinator.receive(1, ask("x"));
  Ready other = ask("x");
  other.fresh[0].signature.shape = {3};
  coordinator.receive(2, other);
  EXPECT_EQ(coordinator.decide().at(0).refused.at(0).reason,
            "Mismatched allreduce tensor shapes for 'x': rank 1 sent a tensor of shape [2], but rank 2 sent a tensor "
            "of shape [3].");
}

// --- engines ---------------------------------------------------------------------------------------------------------

int64_t join(Engine& engine, const std::string& name = "join") {
  return finish(engine, engine.submit({testing::request_of(Kind::kJoin, name)}).front())->sizes.at(0);
}

Error error_of(Engine& engine, engine::Request request) {
  try {
    finish(engine, engine.submit({std::move(request)}).front());
  } catch (const Error& error) {
    return error;
  }
  return {Code::kOk, ""};
}

std::vector<float> reduce(Engine& engine, const std::string& name, std::vector<float> values, ReduceOp op,
                          double prescale = 1.0, uint32_t group = 0) {
  engine::Request request =
      allreduce_request(name, Dtype::kF32, {static_cast<int64_t>(values.size())}, values.data(), values.data(), op);
  request.signature.prescale = prescale;
  request.group = group;
  finish(engine, engine.submit({request}).front());
  return values;
}

class Join : public ::testing::TestWithParam<World> {};

TEST_P(Join, RanksWithLessDataJoinEarlier) {
  constexpr int kSize = 4;
  in_world(GetParam(), kSize, {}, [](int rank, Engine& engine) {
    for (int epoch = 0; epoch < 5; ++epoch) {
      // Rank r has 2 r steps; the others go on without those who are done. What is new and what is known take turns.
      for (int step = 0; step < 2 * (rank + 1); ++step) {
        const int joined = step / 2;
        float others = 0;
        for (int r = 0; r < kSize; ++r) {
          others += 2 * (r + 1) > step ? static_cast<float>(r + 1) : 0;
        }
        const std::string name = step % 3 == 0 ? "e" + std::to_string(epoch) + "." + std::to_string(step) : "x";
        const size_t count = step % 2 == 0 ? 3 : 40'000;
        const std::vector<float> mine(count, static_cast<float>(rank + 1));
        ASSERT_EQ(reduce(engine, name + std::to_string(count), mine, ReduceOp::kSum),
                  std::vector<float>(count, others));
        ASSERT_EQ(reduce(engine, "average", mine, ReduceOp::kAverage), std::vector<float>(count, others / kSize));
        ASSERT_EQ(reduce(engine, "min", mine, ReduceOp::kMin), std::vector<float>(count, joined + 1));
        ASSERT_EQ(reduce(engine, "negative max", std::vector<float>(count, -static_cast<float>(rank + 1)),
                         ReduceOp::kMax, 0.5),
                  std::vector<float>(count, -0.5F * static_cast<float>(joined + 1)));
        ASSERT_EQ(reduce(engine, "product", std::vector<float>(count, 2), ReduceOp::kProduct),
                  std::vector<float>(count, static_cast<float>(1 << (kSize - joined))));
      }
      ASSERT_EQ(join(engine), kSize - 1) << "the one with most steps comes last";
    }
  });
}

TEST_P(Join, ManyRequestsAreFusedAlikeOnAllRanks) {
  engine::EngineSettings settings;
  settings.knobs.fusion_threshold = 4000;
  in_world(GetParam(), 3, settings, [](int rank, Engine& engine) {
    for (int epoch = 0; epoch < 10; ++epoch) {
      for (int step = 0; step < 5 && (rank != 1 || step < 2); ++step) {
        std::vector<std::vector<float>> tensors;
        std::vector<engine::Request> requests;
        for (int i = 0; i < 20; ++i) {
          tensors.emplace_back(static_cast<size_t>(i * 17 + 1), static_cast<float>(i));
        }
        for (int i = 0; i < 20; ++i) {
          auto& values = tensors[static_cast<size_t>(i)];
          requests.push_back(allreduce_request("t" + std::to_string(i), Dtype::kF32,
                                               {static_cast<int64_t>(values.size())}, values.data(), values.data()));
        }
        for (const Handle handle : engine.submit(requests)) {
          finish(engine, handle);
        }
        for (int i = 0; i < 20; ++i) {
          const size_t count = tensors[static_cast<size_t>(i)].size();
          ASSERT_EQ(tensors[static_cast<size_t>(i)],
                    std::vector<float>(count, static_cast<float>(i * (step < 2 ? 3 : 2))));
        }
      }
      join(engine);
    }
  });
}

TEST_P(Join, OtherKindsFailOnRanksThatAskAndJobGoesOn) {
  std::atomic<bool> joined{false};
  in_world(GetParam(), 3, {}, [&](int rank, Engine& engine) {
    std::vector<float> values(6, 1);
    ASSERT_EQ(testing::allreduce(engine, "x", {1.0F}), std::vector<float>{3.0F});
    if (rank == 2) {
      const Handle handle = engine.submit({testing::request_of(Kind::kJoin, "join")}).front();
      joined = true;
      finish(engine, handle);
    } else {
      while (!joined) {
        std::this_thread::yield();
      }
      // That it has joined is known for sure once something went on without it.
      ASSERT_EQ(testing::allreduce(engine, "x", {1.0F}), std::vector<float>{2.0F});
      for (const Kind kind :
           {Kind::kAllgather, Kind::kBroadcast, Kind::kBarrier, Kind::kAlltoall, Kind::kReducescatter}) {
        const Error error =
            error_of(engine, testing::request_of(kind, "bad", Dtype::kF32, {6}, values.data(), values.data()));
        EXPECT_EQ(error.code(), Code::kMismatch);
        EXPECT_NE(std::string(error.what()).find("rank 2 has called join()"), std::string::npos) << error.what();
      }
      ASSERT_EQ(testing::allreduce(engine, "x", {1.0F}), std::vector<float>{2.0F});
      join(engine);
    }
    ASSERT_EQ(testing::allreduce(engine, "x", {1.0F}), std::vector<float>{3.0F});
  });
}

TEST_P(Join, GroupsWithAndWithoutJoinedRanks) {
  in_world(GetParam(), 4, {}, [](int rank, Engine& engine) {
    engine::Request add = testing::request_of(Kind::kAddGroup, "add", Dtype::kI64, {0, 1, 3});
    const auto group = static_cast<uint32_t>(finish(engine, engine.submit({add}).front())->sizes.at(0));
    for (int turn = 0; turn < 3; ++turn) {
      if (rank == 0 || rank == 3) {
        for (int step = 0; step < 4; ++step) {
          ASSERT_EQ(reduce(engine, "x", std::vector<float>(100, 3), ReduceOp::kAverage, 1.0, group),
                    std::vector<float>(100, step == 0 ? 3.0F : 2.0F));
        }
      }
      if (rank == 1) {
        reduce(engine, "x", std::vector<float>(100, 3), ReduceOp::kAverage, 1.0, group);
      }
      join(engine);
    }
  });
}

TEST_P(Join, AsynchronousRequestMadeBeforeJoinCountsInFull) {
  in_world(GetParam(), 2, {}, [](int rank, Engine& engine) {
    for (int turn = 0; turn < 20; ++turn) {
      std::vector<float> values(1000, static_cast<float>(rank + 1));
      const auto request = allreduce_request("x", Dtype::kF32, {1000}, values.data(), values.data());
      if (rank == 1) {
        const Handle before = engine.submit({request}).front();
        join(engine);
        finish(engine, before);
      } else {
        finish(engine, engine.submit({request}).front());
        join(engine);
      }
      ASSERT_EQ(values, std::vector<float>(1000, 3));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Engine, Join,
                         ::testing::Values(World::kShm, World::kTcp, World::kTwoHosts, World::kTree, World::kLoopback),
                         [](const auto& info) { return testing::name_of(info.param); });

TEST(JoinEngine, JoinInWorldOfOneIsDoneAtOnce) {
  in_world(World::kLoopback, 1, {}, [](int, Engine& engine) {
    EXPECT_EQ(join(engine), 0);
    EXPECT_EQ(join(engine), 0);
  });
}

TEST(JoinEngine, SecondJoinAndJoinInGroupAreRefused) {
  std::atomic<bool> checked{false};
  in_world(World::kLoopback, 2, {}, [&](int rank, Engine& engine) {
    if (rank == 0) {
      const Handle handle = engine.submit({testing::request_of(Kind::kJoin, "join")}).front();
      EXPECT_EQ(error_of(engine, testing::request_of(Kind::kJoin, "another")).code(), Code::kInvalidArgument);
      checked = true;
      finish(engine, handle);
    } else {
      engine::Request elsewhere = testing::request_of(Kind::kJoin, "join");
      elsewhere.group = 3;
      EXPECT_EQ(error_of(engine, elsewhere).code(), Code::kInvalidArgument);
      while (!checked) {
        std::this_thread::yield();
      }
      join(engine);
    }
    const int64_t last = join(engine, "under another name on rank " + std::to_string(rank));
    EXPECT_TRUE(last == 0 || last == 1);
  });
}

TEST(JoinEngine, JoinFailsWhenAnotherRankLeaves) {
  in_world(World::kLoopback, 3, {}, [](int rank, Engine& engine) {
    if (rank == 1) {
      return;  // leaves
    }
    EXPECT_EQ(error_of(engine, testing::request_of(Kind::kJoin, "join")).code(), Code::kShutDown);
  });
}

}  // namespace
}  // namespace farandole
