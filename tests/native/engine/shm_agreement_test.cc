// Agreement without messages: the word itself, and engines that go this way, leave it and come back.
#include "engine/shm_agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <random>
#include <semaphore>
#include <thread>

#include "support/worlds.h"

namespace farandole {
namespace {

using engine::Engine;
using engine::ShmAgreement;
using reduce::Dtype;
using testing::allreduce_request;
using testing::finish;
using State = ShmAgreement::State;
using World = testing::Kind;

TEST(ShmAgreement, AllAnnounceTheSame) {
  transport::ArenaHeader header{};
  ShmAgreement agreement(&header, 3);
  EXPECT_EQ(agreement.announce(2, 7).state, State::kOpen);
  EXPECT_EQ(agreement.announce(2, 7).state, State::kOpen);
  EXPECT_EQ(agreement.look(2), State::kOpen);
  EXPECT_EQ(agreement.announce(2, 7).state, State::kAll);
  EXPECT_EQ(agreement.look(2), State::kAll);
  EXPECT_EQ(agreement.close(2).state, State::kAll) << "what is agreed stays agreed";
}

TEST(ShmAgreement, AnotherRequestClosesIt) {
  transport::ArenaHeader header{};
  ShmAgreement agreement(&header, 2);
  EXPECT_EQ(agreement.announce(5, 1).state, State::kOpen);
  EXPECT_EQ(agreement.announce(5, 2).state, State::kClosed);
  EXPECT_EQ(agreement.look(5), State::kClosed);
  EXPECT_EQ(agreement.announce(5, 1).state, State::kClosed) << "for good";
  EXPECT_EQ(agreement.announce(6, 1).state, State::kOpen) << "the next number is another matter";
}

TEST(ShmAgreement, ClosedBeforeAnyAnnouncement) {
  transport::ArenaHeader header{};
  ShmAgreement agreement(&header, 2);
  EXPECT_EQ(agreement.close(9).state, State::kClosed);
  EXPECT_EQ(agreement.announce(9, 0).state, State::kClosed);
}

TEST(ShmAgreement, LateWorkerFindsThatItsNumberHasPassed) {
  transport::ArenaHeader header{};
  ShmAgreement agreement(&header, 2);
  EXPECT_EQ(agreement.announce(3, 0).state, State::kOpen);
  EXPECT_EQ(agreement.close(3).state, State::kClosed);
  EXPECT_EQ(agreement.announce(4, 0).state, State::kOpen);
  EXPECT_EQ(agreement.look(3), State::kClosed) << "still there while the next one is open";
  EXPECT_EQ(agreement.close(5).state, State::kClosed);
  EXPECT_EQ(agreement.look(3), State::kPassed);
  EXPECT_EQ(agreement.close(3).state, State::kPassed);
  EXPECT_EQ(agreement.announce(3, 0).state, State::kClosed);
}

TEST(ShmAgreement, LastWorkerWorksForAllBeforeTheySeeThatAllAgree) {
  transport::ArenaHeader header{};
  ShmAgreement agreement(&header, 3);
  const auto never = [] { FAIL() << "others are missing"; };
  EXPECT_EQ(agreement.announce(2, 7, never).state, State::kOpen);
  EXPECT_EQ(agreement.announce(2, 7, never).state, State::kOpen);
  int times = 0;
  const auto work = [&] {
    ++times;
    EXPECT_EQ(agreement.look(2), State::kOpen);
    agreement.set_last(2, 1);
  };
  EXPECT_EQ(agreement.announce(2, 7, work).state, State::kAll);
  EXPECT_EQ(times, 1);
  EXPECT_EQ(agreement.last(2), 1);
}

TEST(ShmAgreement, LastWorkerDoesNothingForAnotherRequest) {
  transport::ArenaHeader header{};
  ShmAgreement agreement(&header, 2);
  agreement.announce(2, 7);
  EXPECT_EQ(agreement.announce(2, 8, [] { FAIL() << "the others have announced another request"; }).state,
            State::kClosed);
  EXPECT_EQ(agreement.announce(2, 7, [] { FAIL() << "it is closed"; }).state, State::kClosed);
}

TEST(ShmAgreement, ClosedWhileTheLastWorkerWorks) {
  transport::ArenaHeader header{};
  ShmAgreement agreement(&header, 2);
  agreement.announce(2, 7);
  int times = 0;
  const auto state = agreement
                         .announce(2, 7,
                                   [&] {
                                     ++times;
                                     EXPECT_EQ(agreement.close(2).state, State::kClosed);
                                   })
                         .state;
  EXPECT_EQ(state, State::kClosed);
  EXPECT_EQ(times, 1);
  EXPECT_EQ(agreement.look(2), State::kClosed);
}

TEST(ShmAgreement, WorkOfTheLastWorkerThatFailsAnnouncesNothing) {
  transport::ArenaHeader header{};
  ShmAgreement agreement(&header, 2);
  agreement.announce(2, 7);
  EXPECT_THROW(agreement.announce(2, 7, [] { throw base::Error(base::Code::kInternal, "the world has ended"); }),
               base::Error);
  EXPECT_EQ(agreement.look(2), State::kOpen);
}

TEST(ShmAgreement, NumbersWrapAround) {
  transport::ArenaHeader header{};
  ShmAgreement agreement(&header, 1);
  header.shm_agreement[1] = uint64_t{UINT32_MAX} << 32 | 1;
  EXPECT_EQ(agreement.announce(1, 0).state, State::kAll);
}

TEST(ShmAgreement, WithoutWordThereIsNoAgreement) {
  ShmAgreement nowhere(nullptr, 2);
  EXPECT_EQ(nowhere.announce(1, 0).state, State::kClosed);
  EXPECT_EQ(nowhere.close(1).state, State::kClosed);
  transport::ArenaHeader header{};
  ShmAgreement too_many(&header, 40000);
  EXPECT_EQ(too_many.announce(1, 0).state, State::kClosed);
  ShmAgreement forbidden(&header, 2);
  forbidden.forbid();
  EXPECT_EQ(forbidden.announce(1, 0).state, State::kClosed);
}

// Returns how many of the steps were agreed on without messages.
uint64_t blocking_loop(Engine& engine, int rank, int steps) {
  float value = 0;
  const auto step = [&](int number) {
    value = static_cast<float>(rank + number);
    finish(engine, engine.submit({allreduce_request("loop", Dtype::kF32, {1}, &value, &value)}, true).front());
    return value;
  };
  const int size = static_cast<int>(engine.size_of_group(0));
  for (int number = 0; number < steps; ++number) {
    EXPECT_EQ(step(number), static_cast<float>(size * number + testing::sum_of_ranks(size)));
  }
  EXPECT_EQ(engine.stats().rounds, static_cast<uint64_t>(steps));
  return engine.stats().fast_path_rounds;
}

TEST(FastPath, LoopOfBlockingCallsTakesIt) {
  engine::EngineSettings settings;
  settings.spin_ns = 1'000'000'000;  // nobody loses patience
  for (const int size : {1, 2, 3, 4, 8}) {
    testing::in_world(World::kShm, size, settings, [](int rank, Engine& engine) {
      // Not all but two: an engine thread that is still awake takes the long way when a user wants the progress lock.
      EXPECT_GT(blocking_loop(engine, rank, 200), 0U);
    });
  }
}

TEST(FastPath, NeedsOneHost) {
  for (const World world : {World::kTcp, World::kTwoHosts}) {
    testing::in_world(world, 3, {}, [](int rank, Engine& engine) { EXPECT_EQ(blocking_loop(engine, rank, 20), 0U); });
  }
}

// Staged before it is agreed: from ordinary memory and from the arena, of sizes that are reduced in different ways.
TEST(FastPath, TensorsOfEverySizeAndPlace) {
  for (const int size : {2, 3, 4}) {
    testing::Meshes meshes(World::kShm, size);
    testing::on_all_ranks(size, [&](int rank) {
      engine::EngineSettings settings;
      settings.piece_bytes = 65536;
      Engine engine(settings);
      engine.enter(meshes.form(rank), meshes.arena(rank));
      for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}, size_t{4097}, size_t{100'003}}) {
        std::vector<float> ordinary(count);
        auto* const arena =
            static_cast<float*>(meshes.arena(rank).allocate(std::max<size_t>(count, 1) * sizeof(float)));
        for (int number = 0; number < 12; ++number) {
          // Where it lies is each rank's own affair.
          float* const data = (number + rank) % 3 == 0 || number % 4 == 0 ? arena : ordinary.data();
          for (size_t i = 0; i < count; ++i) {
            data[i] = static_cast<float>(rank + number) + static_cast<float>(i % 7);
          }
          const auto request =
              allreduce_request("of " + std::to_string(count), Dtype::kF32, {static_cast<int64_t>(count)}, data, data);
          finish(engine, engine.submit({request}, number % 5 != 4).front());
          const auto base = static_cast<float>(size * number + testing::sum_of_ranks(size));
          for (size_t i = 0; i < count; ++i) {
            ASSERT_EQ(data[i], base + static_cast<float>(static_cast<size_t>(size) * (i % 7))) << i << " of " << count;
          }
        }
      }
      engine.leave(base::Deadline::after_seconds(testing::kPatience));
    });
  }
}

// A thread that polls for such a short time, or not at all, has often announced its request and given up before the
// others come.
TEST(FastPath, WaitingEndsAndTheSlowPathBegins) {
  for (const int64_t spin_ns : {0, 1, 100}) {
    engine::EngineSettings settings;
    settings.spin_ns = spin_ns;
    testing::in_world(World::kShm, 3, settings, [](int rank, Engine& engine) { blocking_loop(engine, rank, 100); });
  }
}

// Asks once more for what some rank does not ask for again.
base::Error asks_in_vain(Engine& engine) {
  float value = 1;
  try {
    finish(engine, engine.submit({allreduce_request("loop", Dtype::kF32, {1}, &value, &value)}, true).front());
  } catch (const base::Error& error) {
    return error;
  }
  return {base::Code::kOk, "it was done, though a rank never asked for it"};
}

// Waits until the user of this rank sleeps, because it has announced its request and looked in vain for the others; for
// a second at most, after which it has given up this way.
void wait_until_asleep(testing::Meshes& meshes, int rank) {
  const auto deadline = base::Deadline::after_seconds(1);
  while (meshes.arena(rank).view().header().sleeping.load() == 0 && !deadline.passed()) {
    std::this_thread::yield();
  }
}

// Runs body(rank, engine) in a world in which all have asked for "loop" before.
void after_some_steps(testing::Meshes& meshes, const std::function<void(int, Engine&)>& body) {
  testing::on_all_ranks(meshes.size(), [&](int rank) {
    Engine engine({});
    engine.enter(meshes.form(rank), meshes.arena(rank));
    blocking_loop(engine, rank, 5);
    body(rank, engine);
    engine.leave(base::Deadline::after_seconds(testing::kPatience));
  });
}

void ask(Engine& engine, const char* name) {
  float value = 1;
  finish(engine, engine.submit({allreduce_request(name, Dtype::kF32, {1}, &value, &value)}, true).front());
  EXPECT_EQ(value, static_cast<float>(engine.size_of_group(0)));
}

TEST(FastPath, LateWorkerWakesSleepingWorkers) {
  for (const int size : {2, 3, 4}) {
    testing::Meshes meshes(World::kShm, size);
    after_some_steps(meshes, [&](int rank, Engine& engine) {
      const uint64_t before = engine.stats().fast_path_rounds;
      for (int step = 0; step < 20; ++step) {
        for (int other = 0; step % size == rank && other < size; ++other) {
          if (other != rank) {
            wait_until_asleep(meshes, other);
          }
        }
        ask(engine, "loop");
      }
      EXPECT_GT(engine.stats().fast_path_rounds, before) << "of " << size;
    });
  }
}

TEST(FastPath, SleepingThreadRunsRequestOfAnotherThread) {
  constexpr int kSteps = 20;
  testing::Meshes meshes(World::kShm, 2);
  std::counting_semaphore<kSteps> found_asleep(0);  // rank 0, by its other thread: rank 1 would wake it earlier
  after_some_steps(meshes, [&](int rank, Engine& engine) {
    for (int step = 0; step < kSteps; ++step) {
      if (rank == 1) {
        found_asleep.acquire();
        ask(engine, "of another thread");
        ask(engine, "loop");
        continue;
      }
      std::thread other([&] {
        wait_until_asleep(meshes, 0);
        found_asleep.release();
        ask(engine, "of another thread");
      });
      ask(engine, "loop");
      other.join();
    }
  });
}

TEST(FastPath, SleepingThreadLearnsThatWorldHasEnded) {
  for (const bool in_good_order : {false, true}) {
    testing::Meshes meshes(World::kShm, 3);
    after_some_steps(meshes, [&](int rank, Engine& engine) {
      if (rank != 1) {
        const base::Error error = asks_in_vain(engine);
        EXPECT_EQ(error.code(), in_good_order ? base::Code::kShutDown : base::Code::kWorkerLost) << error.what();
        return;
      }
      wait_until_asleep(meshes, 0);
      wait_until_asleep(meshes, 2);
      if (!in_good_order) {
        engine.abandon({1, transport::Sign::kRevoked, "rank 1 was lost: it has had enough"});
      }
    });
  }
}

TEST(FastPath, OtherTensorsOfSameSizeAreAnotherRequest) {
  testing::in_world(World::kShm, 2, {}, [](int rank, Engine& engine) {
    for (int number = 0; number < 40; ++number) {
      float a = 1;
      float b = 10;
      const auto first =
          allreduce_request(rank == 0 ? "a" : "b", Dtype::kF32, {1}, rank == 0 ? &a : &b, rank == 0 ? &a : &b);
      const auto second =
          allreduce_request(rank == 0 ? "b" : "a", Dtype::kF32, {1}, rank == 0 ? &b : &a, rank == 0 ? &b : &a);
      // In opposite orders: neither can wait for its first before it has asked for its second.
      const auto one = engine.submit({first}, true).front();
      const auto other = engine.submit({second}, true).front();
      finish(engine, one);
      finish(engine, other);
      EXPECT_EQ(a, 2);
      EXPECT_EQ(b, 20);
    }
  });
}

TEST(FastPath, ThreadsMakeDifferentRequestsAtOnce) {
  for (const int size : {2, 3, 4}) {
    testing::in_world(World::kShm, size, {}, [size](int rank, Engine& engine) {
      std::vector<std::thread> threads;
      for (int thread = 0; thread < 3; ++thread) {
        threads.emplace_back([&engine, rank, thread, size] {
          std::mt19937 random(static_cast<unsigned>(rank * 10 + thread));
          for (int number = 0; number < 150; ++number) {
            auto value = static_cast<float>(rank + thread * number);
            const auto request =
                allreduce_request("of thread " + std::to_string(thread), Dtype::kF32, {1}, &value, &value);
            finish(engine, engine.submit({request}, random() % 4 != 0).front());
            ASSERT_EQ(value, static_cast<float>(size * thread * number + testing::sum_of_ranks(size)));
          }
        });
      }
      for (std::thread& thread : threads) {
        thread.join();
      }
    });
  }
}

TEST(FastPath, EveryKindOfRequestCanTakeIt) {
  testing::in_world(World::kShm, 4, {}, [](int rank, Engine& engine) {
    for (int number = 0; number < 10; ++number) {
      float root = static_cast<float>(rank);
      auto broadcast = testing::request_of(engine::Kind::kBroadcast, "broadcast", Dtype::kF32, {1}, &root, &root);
      broadcast.signature.root = number % 2;
      finish(engine, engine.submit({broadcast}, true).front());
      EXPECT_EQ(root, static_cast<float>(number % 2));
      std::vector<float> rows(static_cast<size_t>(rank) + 1, static_cast<float>(rank));
      const auto allgather =
          testing::request_of(engine::Kind::kAllgather, "allgather", Dtype::kF32, {rank + 1}, rows.data());
      const auto gathered = finish(engine, engine.submit({allgather}, true).front());
      EXPECT_EQ(gathered->sizes, (std::vector<int64_t>{1, 2, 3, 4}));
      EXPECT_EQ(gathered->data.size(), 10 * sizeof(float));
      finish(engine, engine.submit({testing::request_of(engine::Kind::kBarrier, "barrier")}, true).front());
    }
  });
}

TEST(FastPath, LostRankEndsIt) {
  testing::Meshes meshes(World::kShm, 3);
  std::atomic<int> done = 0;
  testing::on_all_ranks(3, [&](int rank) {
    Engine engine({});
    engine.enter(meshes.form(rank), meshes.arena(rank));
    blocking_loop(engine, rank, 20);
    ++done;
    if (rank == 2) {
      while (done < 3) {
        std::this_thread::yield();
      }
      engine.abandon({2, transport::Sign::kRevoked, "rank 2 was lost: it has had enough"});
      return;
    }
    const base::Error error = asks_in_vain(engine);
    EXPECT_EQ(error.code(), base::Code::kWorkerLost) << error.what();
    EXPECT_EQ(error.lost_rank(), 2);
  });
}

TEST(FastPath, LeavingRankEndsIt) {
  testing::in_world(World::kShm, 3, {}, [](int rank, Engine& engine) {
    blocking_loop(engine, rank, 20);
    if (rank != 1) {
      const base::Error error = asks_in_vain(engine);
      EXPECT_EQ(error.code(), base::Code::kShutDown) << error.what();
    }
  });
}

// Events show when each rank became ready for a request; for requests on the fast path, that could not be seen.
TEST(FastPath, IsNotUsedWhileEventsAreRead) {
  std::latch all_record(2);
  testing::in_world(World::kShm, 2, {}, [&](int rank, Engine& engine) {
    std::vector<engine::Event> events(1024);
    uint64_t cursor = 0;
    uint64_t lost = 0;
    engine.events().read(cursor, events, lost);
    // Rank 0 says nothing of what rank 1 asked for before rank 0 began to record.
    all_record.arrive_and_wait();
    blocking_loop(engine, rank, 30);
    if (rank == 0) {
      const size_t count = engine.events().read(cursor, events, lost);
      const auto reports = std::count_if(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(count),
                                         [](const auto& each) { return each.phase == engine::Phase::kRankReady; });
      EXPECT_EQ(reports, 60);
    }
  });
}

}  // namespace
}  // namespace farandole
