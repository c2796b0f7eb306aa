// One engine among others: order, errors at the call and across ranks, groups, endings, arena tensors.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "engine/messages.h"
#include "support/worlds.h"
#include "transport/frame_multiplexer.h"

namespace farandole {
namespace {

using base::Code;
using base::Error;
using engine::Engine;
using engine::Handle;
using engine::Kind;
using engine::ReduceOp;
using reduce::Dtype;
using testing::allreduce_request;
using testing::finish;
using testing::in_world;
using World = testing::Kind;

Code code_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

uint32_t add_group(Engine& engine, const std::string& name, std::vector<int64_t> ranks) {
  engine::Request request = testing::request_of(Kind::kAddGroup, name, Dtype::kI64, std::move(ranks));
  return static_cast<uint32_t>(finish(engine, engine.submit({request}).front())->sizes.at(0));
}

TEST(Engine, RequestsMatchByNameNotByOrder) {
  in_world(World::kShm, 3, {}, [](int rank, Engine& engine) {
    for (int step = 0; step < 50; ++step) {
      std::vector<float> values = {1, 10, 100, 1000};
      std::vector<Handle> handles(4);
      for (size_t i = 0; i < 4; ++i) {
        const size_t tensor = (i + static_cast<size_t>(rank + step)) % 4;
        handles[tensor] = engine
                              .submit({allreduce_request("t" + std::to_string(tensor), Dtype::kF32, {1},
                                                         &values[tensor], &values[tensor])})
                              .front();
      }
      for (const Handle handle : handles) {
        finish(engine, handle);
      }
      ASSERT_EQ(values, (std::vector<float>{3, 30, 300, 3000}));
    }
  });
}

TEST(Engine, MismatchFailsOnAllRanksAndJobGoesOn) {
  in_world(World::kShm, 3, {}, [](int rank, Engine& engine) {
    for (int step = 0; step < 5; ++step) {
      std::vector<float> values(4, 1);
      const int64_t count = rank == 1 ? 3 : 4;
      const std::string message = message_of([&] {
        finish(engine,
               engine.submit({allreduce_request("x", Dtype::kF32, {count}, values.data(), values.data())}).front());
      });
      ASSERT_EQ(message,
                "Mismatched allreduce tensor shapes for 'x': ranks 0 and 2 sent a tensor of shape [4], but rank 1 sent "
                "a tensor of shape [3].");
      ASSERT_EQ(testing::allreduce(engine, "x", {2.0F}), std::vector<float>{6.0F});
    }
  });
}

TEST(Engine, BadRequestsFailAtTheCallAndLeaveNothingBehind) {
  in_world(World::kShm, 2, {}, [](int rank, Engine& engine) {
    const uint32_t group = add_group(engine, "add", {1});
    float value = 1;
    const auto request = [&](const std::string& name) {
      return allreduce_request(name, Dtype::kF32, {1}, &value, &value);
    };
    const auto refused = [&](const engine::Request& bad) {
      // A good one in front: all or none.
      return code_of([&] { engine.submit({request("good"), bad}); });
    };
    engine::Request bad = request("bad");
    bad.group = 17;
    EXPECT_EQ(refused(bad), Code::kInvalidArgument);
    bad = request("bad");
    bad.signature.shape = {-1};
    EXPECT_EQ(refused(bad), Code::kInvalidArgument);
    bad = request("bad");
    bad.signature.kind = Kind::kBroadcast;
    bad.signature.root = 2;
    EXPECT_EQ(refused(bad), Code::kInvalidArgument);
    EXPECT_EQ(refused(testing::request_of(Kind::kAllgather, "bad")), Code::kInvalidArgument);
    EXPECT_EQ(refused(request("good")), Code::kInvalidArgument) << "one name twice in a submission";
    if (rank == 0) {
      bad = request("bad");
      bad.group = group;
      EXPECT_NE(message_of([&] { engine.submit({bad}); }).find("rank 0 is not a member"), std::string::npos);
    }
    EXPECT_EQ(testing::allreduce(engine, "good", {1.0F}), std::vector<float>{2.0F});
  });
}

TEST(Engine, NameInFlightIsRefused) {
  std::atomic<bool> refused{false};
  in_world(World::kShm, 2, {}, [&](int rank, Engine& engine) {
    float value = 1;
    const auto request = allreduce_request("x", Dtype::kF32, {1}, &value, &value);
    if (rank == 0) {
      const Handle handle = engine.submit({request}).front();
      EXPECT_EQ(code_of([&] { engine.submit({request}); }), Code::kInvalidArgument);
      refused = true;
      finish(engine, handle);
    } else {
      while (!refused) {
        std::this_thread::yield();
      }
      finish(engine, engine.submit({request}).front());
    }
    EXPECT_EQ(value, 2);
  });
}

TEST(Engine, GroupsProgressIndependently) {
  in_world(World::kShm, 4, {}, [](int rank, Engine& engine) {
    const uint32_t left = add_group(engine, "add left", {0, 1});
    const uint32_t right = add_group(engine, "add right", {2, 3});
    const uint32_t odd = add_group(engine, "add odd", {1, 3});
    // Rank 0 waits in the world while the right and the odd group go on working.
    float waiting = 1;
    Handle held = 0;
    if (rank == 0) {
      held = engine.submit({allreduce_request("world", Dtype::kF32, {1}, &waiting, &waiting)}).front();
    }
    for (int step = 0; step < 20; ++step) {
      if (rank >= 2) {
        ASSERT_EQ(testing::allreduce(engine, "r", {static_cast<float>(rank)}, right), std::vector<float>{5.0F});
      }
      if (rank % 2 == 1) {
        ASSERT_EQ(testing::allreduce(engine, "o", std::vector<float>(10'000, 1.0F), odd),
                  std::vector<float>(10'000, 2.0F));
      }
    }
    if (rank < 2) {
      ASSERT_EQ(testing::allreduce(engine, "l", {static_cast<float>(rank)}, left), std::vector<float>{1.0F});
    }
    if (rank != 0) {
      held = engine.submit({allreduce_request("world", Dtype::kF32, {1}, &waiting, &waiting)}).front();
    }
    finish(engine, held);
    EXPECT_EQ(waiting, 4);
    engine::Request remove = testing::request_of(Kind::kRemoveGroup, "remove", Dtype::kI64, {odd});
    const Handle removing = engine.submit({remove}).front();
    if (rank == 1) {
      float value = 0;
      engine::Request late = allreduce_request("late", Dtype::kF32, {1}, &value, &value);
      late.group = odd;
      EXPECT_EQ(code_of([&] { engine.submit({late}); }), Code::kInvalidArgument);
    }
    finish(engine, removing);
    EXPECT_EQ(add_group(engine, "again", {0, 3}), odd);
  });
}

TEST(Engine, OverlappingGroupsInOppositeOrdersDoNotDeadlock) {
  for (const World kind : {World::kTwoHosts, World::kTree}) {
    in_world(kind, 4, {}, [](int rank, Engine& engine) {
      const uint32_t a = add_group(engine, "a", {0, 1, 2});
      const uint32_t b = add_group(engine, "b", {1, 2, 3});
      for (int step = 0; step < 50; ++step) {
        std::vector<float> in_a(2000, 1);
        std::vector<float> in_b(2000, 1);
        std::vector<engine::Request> requests;
        if (rank < 3) {
          requests.push_back(allreduce_request("a", Dtype::kF32, {2000}, in_a.data(), in_a.data()));
          requests.back().group = a;
        }
        if (rank > 0) {
          requests.push_back(allreduce_request("b", Dtype::kF32, {2000}, in_b.data(), in_b.data()));
          requests.back().group = b;
        }
        if (rank == 2) {
          std::swap(requests[0], requests[1]);
        }
        std::vector<Handle> handles;
        for (const engine::Request& request : requests) {
          handles.push_back(engine.submit({request}).front());
        }
        for (const Handle handle : handles) {
          finish(engine, handle);
        }
        if (rank < 3) {
          ASSERT_EQ(in_a, std::vector<float>(2000, 3.0F));
        }
        if (rank > 0) {
          ASSERT_EQ(in_b, std::vector<float>(2000, 3.0F));
        }
      }
      // Rank 0 has no part in group b: it must not leave while the others are still at work there.
      float end = 0;
      finish(engine, engine.submit({allreduce_request("end", Dtype::kF32, {1}, &end, &end)}).front());
    });
  }
}

TEST(Engine, SeveralThreadsMayWaitAtOnce) {
  in_world(World::kShm, 2, {}, [](int rank, Engine& engine) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&engine, rank, thread] {
        for (int step = 0; step < 200; ++step) {
          float value = static_cast<float>(rank + thread + step);
          const std::string name = "of thread " + std::to_string(thread);
          finish(engine, engine.submit({allreduce_request(name, Dtype::kF32, {1}, &value, &value)}, true).front());
          ASSERT_EQ(value, static_cast<float>(1 + 2 * (thread + step)));
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
}

// After a user thread has done the engine's work, the engine thread must still run requests that no thread waits for.
TEST(Engine, RequestWithoutWaiterIsDone) {
  in_world(World::kShm, 2, {}, [](int rank, Engine& engine) {
    for (int step = 0; step < 50; ++step) {
      float waited = 1;
      float left_alone = static_cast<float>(rank);
      finish(engine, engine.submit({allreduce_request("waited", Dtype::kF32, {1}, &waited, &waited)}, true).front());
      const Handle handle =
          engine.submit({allreduce_request("left alone", Dtype::kF32, {1}, &left_alone, &left_alone)}).front();
      testing::look_until_done(engine, handle);
      ASSERT_EQ(left_alone, 1.0F);
    }
  });
}

// While a user thread makes call after call, the engine thread has nothing to do.
TEST(Engine, EngineThreadSleepsOnWhenCallsAreOverBeforeTheirAlarm) {
  in_world(World::kShm, 8, {}, [](int, Engine& engine) {
    const auto sum = [&engine](const std::string& name, float value) {
      finish(engine, engine.submit({allreduce_request(name, Dtype::kF32, {1}, &value, &value)}, true).front());
      return value;
    };
    // On a machine on which nothing runs for a while, a call takes longer than its alarm now and then.
    for (int attempt = 0; attempt < 10; ++attempt) {
      const uint64_t before = engine.stats().sleeps;
      const auto end = base::Deadline::after_seconds(1.5);
      while (sum("goes on", end.passed() ? 0 : 1) == 8) {
      }
      if (sum("was woken", engine.stats().sleeps > before + 1 ? 1 : 0) == 0) {
        return;
      }
    }
    FAIL() << "an engine thread woke up several times in each attempt";
  });
}

TEST(Engine, TensorsInTheArenaAreReducedInPlace) {
  testing::Meshes meshes(World::kShm, 3);
  testing::on_all_ranks(3, [&](int rank) {
    engine::EngineSettings settings;
    settings.piece_bytes = 8192;
    Engine engine(settings);
    auto mesh = meshes.form(rank);
    engine.enter(std::move(mesh), meshes.arena(rank));
    // Three tensors in one block, a cache line each, with a fourth value between them that nobody may touch.
    constexpr size_t kCounts[] = {10, 5000, 40'001};
    auto* const block = static_cast<float*>(meshes.arena(rank).allocate(1 << 20));
    std::vector<float*> tensors = {block, block + 16, block + 16 + 5008};
    block[10] = 77;
    std::vector<engine::Request> requests;
    for (size_t i = 0; i < 3; ++i) {
      std::fill_n(tensors[i], kCounts[i], static_cast<float>(rank + 1));
      requests.push_back(allreduce_request("t" + std::to_string(i), Dtype::kF32, {static_cast<int64_t>(kCounts[i])},
                                           tensors[i], tensors[i], ReduceOp::kAverage));
    }
    for (int step = 0; step < 3; ++step) {
      for (const Handle handle : engine.submit(requests)) {
        finish(engine, handle);
      }
    }
    for (size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(std::vector<float>(tensors[i], tensors[i] + kCounts[i]), std::vector<float>(kCounts[i], 2.0F));
    }
    EXPECT_EQ(block[10], 77);
    EXPECT_EQ(tensors[2][kCounts[2]], 0);
    engine.leave(base::Deadline::after_seconds(testing::kPatience));
  });
}

TEST(Engine, SmallTensorsAndTensorsInPlaceAlternate) {
  // A worker that has read a small tensor goes on at once, with the next one elsewhere in its arena, while others are
  // still reading the small one.
  constexpr int kSize = 4;
  testing::Meshes meshes(World::kLoopback, kSize);
  testing::on_all_ranks(kSize, [&](int rank) {
    Engine engine({});
    engine.enter(meshes.form(rank), meshes.arena(rank));
    constexpr size_t kLarge = 6000;
    auto* const large = static_cast<float*>(meshes.arena(rank).allocate(kLarge * sizeof(float)));
    std::vector<float> small(500);
    for (int step = 0; step < 2000; ++step) {
      std::fill(small.begin(), small.end(), static_cast<float>(rank + step));
      std::fill_n(large, kLarge, static_cast<float>(rank * step));
      const auto handles =
          engine.submit({allreduce_request("small", Dtype::kF32, {500}, small.data(), small.data()),
                         testing::request_of(Kind::kBarrier, "between"),
                         allreduce_request("large", Dtype::kF32, {kLarge}, large, large, ReduceOp::kMax)});
      for (const Handle handle : handles) {
        finish(engine, handle);
      }
      ASSERT_EQ(small, std::vector<float>(500, static_cast<float>(6 + kSize * step))) << "in step " << step;
      ASSERT_EQ(std::vector<float>(large, large + kLarge),
                std::vector<float>(kLarge, static_cast<float>((kSize - 1) * step)))
          << "in step " << step;
    }
    engine.leave(base::Deadline::after_seconds(testing::kPatience));
  });
}

TEST(Engine, PendingRequestsNameRankThatLeft) {
  in_world(World::kShm, 3, {}, [](int rank, Engine& engine) {
    ASSERT_EQ(testing::allreduce(engine, "x", {1.0F}), std::vector<float>{3.0F});
    if (rank == 1) {
      return;  // leaves
    }
    for (int attempt = 0; attempt < 2; ++attempt) {  // one that is pending, then one that comes later
      try {
        testing::allreduce(engine, "y", {1.0F});
        FAIL() << "it cannot have completed";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kShutDown);
        EXPECT_EQ(error.lost_rank(), 1);
        EXPECT_NE(std::string(error.what()).find("rank 1 has shut down"), std::string::npos);
      }
    }
  });
}

TEST(Engine, RevokeReachesAllRanksWithSameMessage) {
  for (const World kind : {World::kShm, World::kTcp, World::kTwoHosts, World::kTree}) {
    std::atomic<int> ready{0};
    in_world(kind, 4, {}, [&ready](int rank, Engine& engine) {
      ASSERT_EQ(testing::allreduce(engine, "x", {1.0F}), std::vector<float>{4.0F});
      ++ready;
      if (rank == 2) {
        while (ready < 4) {
          std::this_thread::yield();
        }
        engine.revoke({2, transport::Sign::kRevoked, "rank 2 raised ValueError: boom"});
      }
      try {
        testing::allreduce(engine, "y", {1.0F});
        FAIL() << "it cannot have completed";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kWorkerLost);
        EXPECT_EQ(std::string(error.what()), "rank 2 raised ValueError: boom");
      }
    });
  }
}

// Rank 1 has no engine: it sends this report, and sees why the world ends.
void expect_failure_of_sender(base::Bytes report, const std::string& words) {
  testing::Meshes meshes(World::kShm, 2);
  testing::on_all_ranks(2, [&](int rank) {
    const auto deadline = base::Deadline::after_seconds(testing::kPatience);
    if (rank == 0) {
      Engine engine((engine::EngineSettings()));
      engine.enter(meshes.form(rank), meshes.arena(rank));
      try {
        testing::allreduce(engine, "x", {1});
        ADD_FAILURE() << "it cannot have completed";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kInternal);
        EXPECT_EQ(error.lost_rank(), 1) << error.what();
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
      }
      EXPECT_FALSE(engine.ending()->certain) << "its process lives";
      engine.abandon({-1, transport::Sign::kRevoked, "the test is over"});
      return;
    }
    const auto mesh = meshes.form(rank);
    transport::FrameMultiplexer frames(*mesh, {});
    frames.post(0, report);
    while (!mesh->world_status().revoked() && !deadline.passed()) {
      std::this_thread::yield();
    }
    ASSERT_TRUE(mesh->world_status().revoked());
    EXPECT_EQ(mesh->world_status().cause()->rank, 1) << mesh->world_status().cause()->text;
  });
}

TEST(Engine, MalformedReportIsFailureOfItsSender) {
  engine::Ready report;
  report.add_known(/*group=*/77, /*bit=*/0);
  expect_failure_of_sender(engine::encode(report), "rank 1 reports");
  expect_failure_of_sender(base::Bytes(3), "malformed message");
}

TEST(Engine, EntersAndLeavesHundredWorlds) {
  testing::Meshes meshes(World::kShm, 3);
  testing::on_all_ranks(3, [&](int rank) {
    Engine engine({});
    for (uint64_t generation = 1; generation <= 100; ++generation) {
      auto mesh = meshes.form(rank, generation);
      engine.enter(std::move(mesh), meshes.arena(rank));
      ASSERT_EQ(testing::allreduce(engine, "x", {1.0F}), std::vector<float>{3.0F});
      engine.leave(base::Deadline::after_seconds(testing::kPatience));
    }
  });
}

TEST(Engine, RequestOutsideOfWorldIsRefusedWithNextStep) {
  Engine engine({});
  float value = 0;
  EXPECT_NE(
      message_of([&] { engine.submit({allreduce_request("x", Dtype::kF32, {1}, &value, &value)}); }).find("init()"),
      std::string::npos);
}

}  // namespace
}  // namespace farandole
