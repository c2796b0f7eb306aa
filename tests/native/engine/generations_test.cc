// Engines that go from world to world in one process: what changes, and that nothing of the old worlds stays behind.
#include <barrier>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "support/sanitized.h"
#include "support/worlds.h"

namespace farandole::testing {
namespace {

using base::Deadline;
using engine::Engine;
using transport::Endpoint;
using transport::Sign;

// A worker that outlives its worlds, as behind the C ABI.
struct Worker {
  explicit Worker(const transport::EndpointSettings& settings) : endpoint(settings) {
    engine::EngineSettings small;
    small.piece_bytes = 1 << 16;
    engine = std::make_unique<Engine>(small);
  }

  void form(const std::vector<std::string>& contacts, int rank, uint64_t generation) {
    engine->abandon({-1, Sign::kRevoked, "the next world forms"});
    transport::World world;
    world.generation = generation;
    world.rank = rank;
    world.contacts = contacts;
    world.secret = "the secret of a test";
    engine->enter(endpoint.form(world, Deadline::after_seconds(kPatience)), endpoint.arena());
  }

  Endpoint endpoint;
  std::unique_ptr<Engine> engine;  // after the endpoint, on whose arena its world stands
};

// What this process holds.
struct Holdings {
  size_t descriptors = 0;
  size_t threads = 0;
  size_t mappings = 0;
  size_t resident_kilobytes = 0;
};

size_t entries_of(const char* folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

Holdings holdings() {
  Holdings now;
  now.descriptors = entries_of("/proc/self/fd");
  now.threads = entries_of("/proc/self/task");
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    // Of the arenas: allocators keep some of their own for each thread that ever was.
    now.mappings += line.find("farandole-arena") != std::string::npos ? 1 : 0;
  }
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") {
      status >> now.resident_kilobytes;
    }
  }
  return now;
}

enum class Ends { kInGoodOrder, kByRevoke, kByDeath };

class Troupe {
 public:
  Troupe(Kind kind, int count) : kind_(kind) {
    for (int i = 0; i < count; ++i) {
      workers_.push_back(make(i));
    }
  }

  // One generation: these form a world, compute, and break up.
  void dance(const std::vector<int>& members, Ends ends) {
    ++generation_;
    std::vector<std::string> contacts;
    for (const int member : members) {
      contacts.push_back(workers_[static_cast<size_t>(member)]->endpoint.contact());
    }
    const int size = static_cast<int>(members.size());
    std::barrier all_have_computed(size);
    on_all_ranks(size, [&](int rank) {
      const int member = members[static_cast<size_t>(rank)];
      auto& worker = workers_[static_cast<size_t>(member)];
      worker->form(contacts, rank, generation_);
      compute(*worker, rank, size);
      all_have_computed.arrive_and_wait();
      if (ends == Ends::kInGoodOrder) {
        worker->engine->leave(Deadline::after_seconds(kPatience));
      } else if (ends == Ends::kByRevoke && rank == 0) {
        worker->engine->revoke({size - 1, Sign::kRevoked, "the test ends this world"});
      } else if (ends == Ends::kByDeath && rank == size - 1) {
        worker = make(member);
      }
    });
  }

 private:
  std::unique_ptr<Worker> make(int index) const {
    transport::EndpointSettings settings;
    settings.arena_bytes = kArenaBytes;
    settings.shared_memory = kind_ != Kind::kTcp;
    settings.host_key = kind_ == Kind::kTwoHosts && index % 2 == 0 ? "even" : "";
    if (kind_ != Kind::kShm) {
      settings.listen_addresses = {"127.0.0.1"};
    }
    settings.failure_deadline_seconds = 10;  // the machine of a test may be very busy
    return std::make_unique<Worker>(settings);
  }

  // In memory of the arena, and outside of it.
  static void compute(Worker& worker, int rank, int size) {
    constexpr size_t kCount = 50'000;
    const auto expected = static_cast<float>(sum_of_ranks(size) + size);
    std::vector<float> outside(kCount, static_cast<float>(rank + 1));
    EXPECT_EQ(allreduce(*worker.engine, "outside", outside), std::vector<float>(kCount, expected));

    transport::Arena& arena = worker.endpoint.arena();
    auto* const inside = static_cast<float*>(arena.allocate(kCount * sizeof(float)));
    std::fill_n(inside, kCount, static_cast<float>(rank + 1));
    const auto request =
        allreduce_request("inside", reduce::Dtype::kF32, {static_cast<int64_t>(kCount)}, inside, inside);
    finish(*worker.engine, worker.engine->submit({request}).front());
    EXPECT_TRUE(std::all_of(inside, inside + kCount, [expected](float value) { return value == expected; }));
    arena.release(inside);
  }

  const Kind kind_;
  uint64_t generation_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
};

class Generations : public ::testing::TestWithParam<Kind> {};

TEST_P(Generations, EndedWorldsKeepNoResources) {
  constexpr int kWorkers = 5;
  constexpr int kBefore = 20;  // by then all that is made once has been made
  constexpr int kAfter = testing::kSanitized ? 60 : 200;
  const std::vector<int> all = {0, 1, 2, 3, 4};
  Troupe troupe(GetParam(), kWorkers);
  std::mt19937 random(7);
  Holdings before;
  for (int generation = 1; generation <= kAfter; ++generation) {
    std::vector<int> members = all;
    std::shuffle(members.begin(), members.end(), random);
    members.resize(1 + random() % kWorkers);
    troupe.dance(members, static_cast<Ends>(random() % 3));
    if (generation == kBefore || generation == kAfter) {
      troupe.dance(all, Ends::kInGoodOrder);
    }
    if (generation == kBefore) {
      before = holdings();
    }
  }
  const Deadline deadline = Deadline::after_seconds(kPatience);
  while (holdings().threads > before.threads && !deadline.passed()) {
    std::this_thread::yield();  // a thread that was joined is still listed for a moment
  }
  const Holdings after = holdings();
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_EQ(after.mappings, before.mappings);
  std::printf("resident: %zu kB, then %zu kB\n", before.resident_kilobytes, after.resident_kilobytes);
  if (!testing::kSanitized) {
    EXPECT_LT(after.resident_kilobytes, before.resident_kilobytes + 16'384);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Generations, ::testing::Values(Kind::kShm, Kind::kTcp, Kind::kTwoHosts),
                         [](const auto& info) { return name_of(info.param); });

// Of a world of three: how it ended, as rank 0 is told.
engine::Ending ending_of(const std::function<void(Engine&)>& end) {
  engine::Ending seen;
  in_world(Kind::kShm, 3, {}, [&](int rank, Engine& engine) {
    if (rank == 1) {
      allreduce(engine, "x", {1});
      end(engine);
    }
    EXPECT_THROW(
        {
          for (;;) {
            allreduce(engine, "x", {1});
          }
        },
        base::Error);
    if (rank == 0) {
      seen = engine.ending().value();
    }
  });
  return seen;
}

TEST(EndingTest, IsCertainWhenAWorkerGivesUp) {
  const auto ending = ending_of([](Engine& engine) { engine.revoke({1, Sign::kRevoked, "rank 1 raised"}); });
  EXPECT_EQ(ending.lost_rank, 1);
  EXPECT_TRUE(ending.certain);
}

TEST(EndingTest, IsCertainWhenAWorkerLeaves) {
  const auto ending = ending_of([](Engine& engine) { engine.leave(Deadline::after_seconds(kPatience)); });
  EXPECT_EQ(ending.lost_rank, 1);
  EXPECT_TRUE(ending.certain);
}

TEST(EndingTest, IsOnlySuspectedWhenAWorkerIsSilent) {
  const auto ending = ending_of([](Engine& engine) { engine.revoke({2, Sign::kSilent, "rank 2 is silent"}); });
  EXPECT_EQ(ending.lost_rank, 2);
  EXPECT_FALSE(ending.certain);
}

TEST(EndingTest, IsEmptyWhileWorldLives) {
  in_world(Kind::kShm, 2, {}, [](int, Engine& engine) {
    EXPECT_FALSE(engine.ending().has_value());
    allreduce(engine, "x", {1});
    EXPECT_FALSE(engine.ending().has_value());
    allreduce(engine, "y", {1});  // nobody leaves before
  });
}

}  // namespace
}  // namespace farandole::testing
