// Requests of one name that are made in turn: the order of the queue, and worlds in which they wait.
#include "engine/name_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <numeric>
#include <random>
#include <thread>

#include "support/worlds.h"

namespace farandole {
namespace {

using base::Code;
using base::Error;
using engine::Completion;
using engine::Engine;
using engine::Handle;
using engine::Kind;
using engine::NameQueue;
using engine::Pending;
using engine::Request;
using reduce::Dtype;
using testing::allreduce_request;
using testing::finish;
using testing::in_world;
using World = testing::Kind;

// --- the queue ---------------------------------------------------------------------------------------------------------

// A request whose number of elements tells it from others of its name.
std::unique_ptr<Pending> pending(const std::string& name, int64_t number, uint32_t group = 0,
                                 Kind kind = Kind::kAllreduce) {
  auto made = std::make_unique<Pending>();
  made->request = testing::request_of(kind, name, Dtype::kF32, {number});
  made->request.group = group;
  return made;
}

using Requests = std::vector<std::unique_ptr<Pending>>;

template <typename... Each>
Requests requests(Each... each) {
  Requests all;
  (all.push_back(std::move(each)), ...);
  return all;
}

std::vector<std::string> titles(const Requests& all) {
  std::vector<std::string> titles;
  for (const auto& each : all) {
    titles.push_back(each->request.name + std::to_string(each->request.signature.shape[0]));
  }
  return titles;
}

using Titles = std::vector<std::string>;

TEST(NameQueue, RequestsOfOneNameGoOnOneByOneInTheirOrder) {
  NameQueue queue;
  Requests first = queue.admit(requests(pending("a", 1), pending("b", 1), pending("a", 2), pending("a", 3)));
  EXPECT_EQ(titles(first), (Titles{"a1", "b1"}));
  EXPECT_FALSE(queue.has_next());
  queue.settle(*first[1]);
  EXPECT_FALSE(queue.has_next());
  EXPECT_FALSE(queue.holds(0, "b"));
  queue.settle(*first[0]);
  EXPECT_TRUE(queue.has_next());
  first.clear();  // the names that the queue knows are those of requests that it or its user still has

  Requests second = queue.admit(requests(pending("a", 4), pending("c", 1)));
  EXPECT_EQ(titles(second), (Titles{"a2", "c1"}));
  EXPECT_TRUE(queue.admit({}).empty());
  queue.settle(*second[0]);
  Requests third = queue.admit({});
  EXPECT_EQ(titles(third), Titles{"a3"});
  queue.settle(*third[0]);
  Requests fourth = queue.admit({});
  EXPECT_EQ(titles(fourth), Titles{"a4"});
  EXPECT_TRUE(queue.holds(0, "a"));
  queue.settle(*fourth[0]);
  EXPECT_FALSE(queue.holds(0, "a"));
  EXPECT_FALSE(queue.has_next());
}

TEST(NameQueue, OneNameInTwoGroupsIsTwoNames) {
  NameQueue queue;
  EXPECT_EQ(queue.admit(requests(pending("a", 1, 0), pending("a", 2, 1))).size(), 2U);
}

TEST(NameQueue, AJoinAndTheEndOfAGroupWaitForAllThatWaitsBeforeThem) {
  for (const Kind kind : {Kind::kJoin, Kind::kRemoveGroup}) {
    NameQueue queue;
    Requests first = queue.admit(requests(pending("a", 1), pending("b", 1), pending("a", 2), pending("b", 2),
                                          pending("end", 1, 0, kind), pending("c", 1)));
    EXPECT_EQ(titles(first), (Titles{"a1", "b1", "c1"}));
    EXPECT_TRUE(queue.holds(0, "end"));
    queue.settle(*first[0]);
    Requests second = queue.admit({});
    EXPECT_EQ(titles(second), Titles{"a2"});
    queue.settle(*second[0]);
    EXPECT_TRUE(queue.admit({}).empty()) << "b2 waits still";
    queue.settle(*first[1]);
    EXPECT_EQ(titles(queue.admit({})), (Titles{"b2", "end1"})) << "what it waits for goes before it";
  }
}

// Another thread may always have something that waits.
TEST(NameQueue, AJoinDoesNotWaitForWhatComesAfterIt) {
  NameQueue queue;
  Requests first = queue.admit(
      requests(pending("a", 1), pending("a", 2), pending("end", 1, 0, Kind::kJoin), pending("a", 3), pending("b", 1)));
  EXPECT_EQ(titles(first), (Titles{"a1", "b1"}));
  EXPECT_TRUE(queue.admit(requests(pending("b", 2))).empty());
  queue.settle(*first[1]);
  const Requests second = queue.admit({});
  EXPECT_EQ(titles(second), Titles{"b2"}) << "which says nothing about a2";
  queue.settle(*first[0]);
  EXPECT_EQ(titles(queue.admit(requests(pending("b", 3)))), (Titles{"a2", "end1"}));
}

TEST(NameQueue, AJoinDoesNotWaitForRequestsThatWaitForOthersOnly) {
  NameQueue queue;
  EXPECT_EQ(titles(queue.admit(requests(pending("a", 1), pending("end", 1, 0, Kind::kJoin)))), (Titles{"a1", "end1"}));
}

TEST(NameQueue, GivesEverythingWhenTheWorldIsOver) {
  NameQueue queue;
  const Requests first = queue.admit(
      requests(pending("a", 1), pending("b", 1), pending("a", 2), pending("b", 2), pending("end", 1, 0, Kind::kJoin)));
  queue.settle(*first[0]);
  Requests rest;
  queue.take_all(rest);
  Titles found = titles(rest);
  std::ranges::sort(found);
  EXPECT_EQ(found, (Titles{"a2", "b2", "end1"}));
  EXPECT_FALSE(queue.has_next());
  EXPECT_FALSE(queue.holds(0, "a"));
}

// --- worlds ------------------------------------------------------------------------------------------------------------

Request in_turn(const std::string& name, std::vector<float>& values) {
  Request request =
      allreduce_request(name, Dtype::kF32, {static_cast<int64_t>(values.size())}, values.data(), values.data());
  request.in_turn = true;
  return request;
}

class InTurn : public ::testing::TestWithParam<World> {};

TEST_P(InTurn, TheNthRequestOfANameMatchesTheNthOfOtherRanks) {
  constexpr int kSize = 4;
  constexpr int kNames = 3;
  constexpr int kRequests = 40;
  in_world(GetParam(), kSize, {}, [](int rank, Engine& engine) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int round = 0; round < 5; ++round) {
      std::vector<std::vector<float>> values;
      for (int i = 0; i < kRequests; ++i) {
        values.emplace_back(static_cast<size_t>(i % 5 == 0 ? 20'000 : i + 1), static_cast<float>(i * (rank + 1)));
      }
      // Each rank takes its own way through the names, and keeps the order within a name.
      std::vector<int> next(kNames);
      std::iota(next.begin(), next.end(), 0);
      std::vector<Handle> handles(kRequests);
      for (int left = kRequests; left > 0;) {
        const size_t name = random() % kNames;
        const int i = next[name];
        if (i >= kRequests) {
          continue;
        }
        next[name] += kNames;
        --left;
        auto& mine = values[static_cast<size_t>(i)];
        handles[static_cast<size_t>(i)] = engine.submit({in_turn("x" + std::to_string(name), mine)}).front();
        if (random() % 8 == 0) {
          std::this_thread::yield();
        }
      }
      for (int i = 0; i < kRequests; ++i) {
        finish(engine, handles[static_cast<size_t>(i)]);
        const auto& mine = values[static_cast<size_t>(i)];
        const int sum = i * kSize * (kSize + 1) / 2;
        ASSERT_EQ(mine, std::vector<float>(mine.size(), static_cast<float>(sum)))
            << "round " << round << ", request " << i;
      }
    }
  });
}

TEST_P(InTurn, BlockingCallsOfTwoThreadsAndOneNameAllEnd) {
  // One rank makes from two threads what others make from one. A call of one name waits for the other's, whether that
  // is agreed on in shared memory or by messages.
  constexpr int kCalls = 60;
  in_world(GetParam(), 3, {}, [](int rank, Engine& engine) {
    const auto call = [&](int times) {
      for (int i = 0; i < times; ++i) {
        std::vector<float> value = {1.0F};
        const Handle handle = engine.submit({in_turn("x", value)}, /*waits_at_once=*/true).front();
        finish(engine, handle);
        ASSERT_EQ(value[0], 3.0F);
      }
    };
    if (rank == 1) {
      std::thread other([&] { call(kCalls); });
      call(kCalls);
      other.join();
    } else {
      call(2 * kCalls);
    }
  });
}

TEST_P(InTurn, OneThatDiffersFailsAloneAndTheNextGoesOn) {
  in_world(GetParam(), 3, {}, [](int rank, Engine& engine) {
    std::vector<std::vector<float>> values(6, std::vector<float>(4, 1.0F));
    values[2].resize(rank == 1 ? 5 : 4, 1.0F);
    std::vector<Handle> handles;
    for (auto& mine : values) {
      handles.push_back(engine.submit({in_turn("x", mine)}).front());
    }
    for (size_t i = 0; i < values.size(); ++i) {
      try {
        finish(engine, handles[i]);
        EXPECT_NE(i, 2U);
        EXPECT_EQ(values[i], std::vector<float>(4, 3.0F));
      } catch (const Error& error) {
        EXPECT_EQ(i, 2U) << error.what();
        EXPECT_EQ(error.code(), Code::kMismatch);
      }
    }
  });
}

TEST_P(InTurn, AJoinComesAfterWhatWasSubmittedBeforeIt) {
  in_world(GetParam(), 3, {}, [](int rank, Engine& engine) {
    for (int epoch = 0; epoch < 5; ++epoch) {
      std::vector<std::vector<float>> values(static_cast<size_t>(4 + 2 * rank), std::vector<float>(3, 1.0F));
      std::vector<Handle> handles;
      for (auto& mine : values) {
        handles.push_back(engine.submit({in_turn("x", mine)}).front());
      }
      handles.push_back(engine.submit({testing::request_of(Kind::kJoin, "join")}).front());
      for (const Handle handle : handles) {
        finish(engine, handle);
      }
      for (size_t i = 0; i < values.size(); ++i) {
        const float ranks = i < 4 ? 3 : i < 6 ? 2 : 1;
        ASSERT_EQ(values[i], std::vector<float>(3, ranks)) << "request " << i;
      }
    }
  });
}

TEST_P(InTurn, AGroupIsRemovedAfterWhatWasSubmittedInIt) {
  in_world(GetParam(), 3, {}, [](int rank, Engine& engine) {
    for (int round = 0; round < 5; ++round) {
      Request add = testing::request_of(Kind::kAddGroup, "add" + std::to_string(round), Dtype::kU8, {0, 2});
      const auto group = static_cast<uint32_t>(finish(engine, engine.submit({add}).front())->sizes.at(0));
      std::vector<std::vector<float>> values(8, std::vector<float>(3, 1.0F));
      std::vector<Handle> handles;
      for (auto& mine : values) {
        if (rank != 1) {
          Request request = in_turn("x", mine);
          request.group = group;
          handles.push_back(engine.submit({request}).front());
        }
      }
      handles.push_back(
          engine
              .submit({testing::request_of(Kind::kRemoveGroup, "remove" + std::to_string(round), Dtype::kU8, {group})})
              .front());
      for (const Handle handle : handles) {
        finish(engine, handle);
      }
      ASSERT_EQ(values, std::vector<std::vector<float>>(8, std::vector<float>(3, rank == 1 ? 1.0F : 2.0F)));
    }
  });
}

TEST_P(InTurn, TheEndOfTheWorldFailsThoseThatWaitOnce) {
  std::atomic<int> called = 0;
  in_world(GetParam(), 3, {}, [&](int rank, Engine& engine) {
    std::vector<float> value(1);
    finish(engine, engine.submit({in_turn("all here", value)}).front());
    if (rank == 2) {
      return;  // leaves
    }
    std::vector<std::vector<float>> values(5, std::vector<float>(3, 1.0F));
    std::vector<Handle> handles;
    for (auto& mine : values) {
      Request request = in_turn("x", mine);
      request.callback = [&](const Completion& completion) {
        EXPECT_EQ(completion.code, Code::kShutDown);
        ++called;
      };
      try {
        handles.push_back(engine.submit({request}).front());
      } catch (const Error& error) {  // rank 2 was quick
        EXPECT_EQ(error.code(), Code::kShutDown);
        ++called;
      }
    }
    for (const Handle handle : handles) {
      EXPECT_THROW(finish(engine, handle), Error);
    }
  });
  EXPECT_EQ(called, 10);
}

TEST_P(InTurn, AnOtherwiseNamedRequestOfTheSameNameWaitsToo) {
  in_world(GetParam(), 2, {}, [](int, Engine& engine) {
    std::vector<float> first = {1.0F};
    std::vector<float> second = {10.0F};
    std::vector<float> third = {100.0F};
    const std::vector<Handle> handles = {
        engine.submit({in_turn("x", first)}).front(),
        engine.submit({allreduce_request("x", Dtype::kF32, {1}, second.data(), second.data())}).front(),
        engine.submit({in_turn("x", third)}).front()};
    for (const Handle handle : handles) {
      finish(engine, handle);
    }
    EXPECT_EQ(first[0] + second[0] + third[0], 222.0F);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, InTurn,
                         ::testing::Values(World::kLoopback, World::kShm, World::kTcp, World::kTwoHosts, World::kTree),
                         [](const auto& info) { return testing::name_of(info.param); });

}  // namespace
}  // namespace farandole
