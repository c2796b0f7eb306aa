// Thousands of ranks in one thread: what the library's cores send, compared with formulas, and how its worlds end under
// faults, judged by oracles.
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <set>

#include "scale/star_and_mesh.h"

namespace farandole::scale {
namespace {

using transport::Cause;
using transport::ControlKind;
using transport::Sign;

constexpr int kSizes[] = {1, 2, 8, 20, 64, 65, 100};
Cause revocation() { return {.rank = 3, .sign = Sign::kRevoked, .text = "the roster has lost rank 3"}; }

Layout layout_of(int size, int ranks_per_host = 8) {
  return {.size = size, .ranks_per_host = ranks_per_host, .hosts_per_rack = 4};
}

// The number of ranks that each rank tells of the world's end: all in small worlds, otherwise one for each power of
// two, in both directions.
uint64_t told_by_each(int size) {
  if (size <= 64) {
    return static_cast<uint64_t>(size - 1);
  }
  uint64_t told = 0;
  for (int distance = 1; 2 * distance <= size; distance *= 2) {
    told += 2 * distance == size ? 1 : 2;
  }
  return told;
}

// Pairs of ranks that share a host, and other pairs that tell each other.
std::pair<uint64_t, uint64_t> pairs_within_hosts_and_across(const Layout& layout) {
  uint64_t within = 0;
  uint64_t across = 0;
  for (int a = 0; a < layout.size; ++a) {
    for (int b = 0; b < a; ++b) {
      const int distance = std::min(a - b, layout.size - (a - b));
      within += layout.share_a_host(a, b) ? 1 : 0;
      across += !layout.share_a_host(a, b) && (layout.size <= 64 || (distance & (distance - 1)) == 0) ? 1 : 0;
    }
  }
  return {within, across};
}

// All ranks do this many barriers, each when it has done the one before.
void run_barriers(StarAndMesh& world, int size, int barriers) {
  for (int barrier = 0; barrier < barriers; ++barrier) {
    for (int rank = 0; rank < size; ++rank) {
      world.submit(rank, "barrier " + std::to_string(barrier % 2));
    }
    world.network().run(world.network().now_ns() + 10 * kSecond);
  }
}

class Sizes : public ::testing::TestWithParam<int> {
 protected:
  const int size_ = GetParam();
  uint64_t others() const { return static_cast<uint64_t>(size_ - 1); }
  const uint64_t n_ = static_cast<uint64_t>(size_);
};

TEST_P(Sizes, SetUpMakesTwoConnectionsForEachPairThatTellsEachOtherAndTakesTwoMessagesForEachRank) {
  const Layout layout = layout_of(size_);
  StarAndMesh world(layout);
  world.connect();
  world.network().run(kSecond);
  ASSERT_TRUE(world.formed()) << world.broken();
  const auto [within, across] = pairs_within_hosts_and_across(layout);
  EXPECT_EQ(world.counts().tcp_connections, 2 * across);
  EXPECT_EQ(world.counts().unix_connections, within);
  EXPECT_EQ(world.counts().frames(ControlKind::kReady), others());
  EXPECT_EQ(world.counts().frames(ControlKind::kFormed), others());
  for (int rank = 0; rank < size_; ++rank) {
    EXPECT_EQ(world.hosts(rank)[static_cast<size_t>(rank)], rank / 8 * 8);
  }
}

TEST_P(Sizes, RevocationReachesAllOnTheWaysOfTheGraph) {
  StarAndMesh world(layout_of(size_));
  world.form_at_once();
  world.network().call([&] { world.revoke(0, revocation()); }, kMillisecond);
  world.network().run(kSecond);
  EXPECT_EQ(world.counts().frames(ControlKind::kRevoke), n_ * told_by_each(size_));
  for (int rank = 0; rank < size_; ++rank) {
    ASSERT_TRUE(world.cause(rank));
    EXPECT_EQ(world.cause(rank)->text, revocation().text);
  }
}

TEST_P(Sizes, BarrierTakesMessageOfEachRankToRootAndBack) {
  constexpr int kBarriers = 5;
  StarAndMesh world(layout_of(size_));
  run_barriers(world, size_, kBarriers);
  EXPECT_EQ(world.counts().up, others() * kBarriers);
  EXPECT_EQ(world.counts().down, others() * kBarriers);
  for (int rank = 0; rank < size_; ++rank) {
    EXPECT_EQ(world.done(rank).size(), static_cast<size_t>(kBarriers));
    EXPECT_EQ(world.done(rank), world.done(0));
  }
}

TEST_P(Sizes, HeartbeatsGrowWithRanksAndNotWithPairs) {
  StarAndMesh world(layout_of(size_));
  world.form_at_once();
  world.network().run(kSecond - 1);
  // Ten ticks in a second, to at most four neighbours.
  EXPECT_EQ(world.counts().frames(ControlKind::kHeartbeat), n_ * 10 * std::min<uint64_t>(4, others()));
  for (int rank = 0; rank < size_; ++rank) {
    EXPECT_FALSE(world.cause(rank)) << world.cause(rank)->text;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Sizes, ::testing::ValuesIn(kSizes), ::testing::PrintToStringParamName());

// --- several workers die at once

struct Loss {
  std::string name;
  int size;
  std::vector<int> dead;
};

std::vector<int> consecutive(int first, int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

class Losses : public ::testing::TestWithParam<Loss> {};

// A survivor closes its connections as soon as it has told its own: those that hear later must not take it for the
// dead.
TEST_P(Losses, ReachAllSurvivorsAtOnceAndBlameTheDead) {
  const auto& [name, size, dead] = GetParam();
  StarAndMesh world({.size = size}, /*seed=*/1, {.jitter = 0.5});
  world.form_at_once();
  world.leave_after_end(0);
  world.network().call(
      [&] {
        for (const int rank : dead) {
          world.kill(rank);
        }
      },
      kMillisecond);
  world.network().run(3 * kSecond);
  const std::set<int> all_dead(dead.begin(), dead.end());
  for (int rank = 0; rank < size; ++rank) {
    if (all_dead.contains(rank)) {
      continue;
    }
    ASSERT_TRUE(world.cause(rank)) << rank;
    EXPECT_TRUE(all_dead.contains(world.cause(rank)->rank)) << rank << ": " << world.cause(rank)->text;
    EXPECT_EQ(world.cause(rank)->sign, Sign::kClosed);
    EXPECT_LT(world.ended_ns(rank), 10 * kMillisecond) << rank;
  }
  const uint64_t survivors = static_cast<uint64_t>(size) - dead.size();
  EXPECT_LE(world.counts().frames(ControlKind::kRevoke), survivors * told_by_each(size));
}

INSTANTIATE_TEST_SUITE_P(All, Losses,
                         ::testing::Values(Loss{"one", 1024, {512}}, Loss{"rank_0", 1024, {0}},
                                           Loss{"four_at_random", 1024, {17, 18, 500, 731}},
                                           Loss{"a_host", 1024, consecutive(128, 8)},
                                           Loss{"the_host_of_rank_0", 1024, consecutive(0, 8)},
                                           Loss{"a_rack", 1024, consecutive(256, 32)},
                                           Loss{"the_rack_of_rank_0", 1024, consecutive(0, 32)},
                                           Loss{"all_but_the_last_rack", 256, consecutive(0, 224)},
                                           Loss{"a_host_of_a_small_world", 64, consecutive(8, 8)}),
                         [](const auto& info) { return info.param.name; });

TEST(StarAndMesh, SameSeedGivesSameRun) {
  const auto ends = [](uint64_t seed) {
    StarAndMesh world(layout_of(40), seed, {.jitter = 0.5});
    world.form_at_once();
    world.network().call([&] { world.kill(7); }, 5 * kMillisecond);
    world.network().run(kSecond);
    std::vector<int64_t> times;
    for (int rank = 0; rank < 40; ++rank) {
      times.push_back(world.ended_ns(rank));
    }
    return times;
  };
  EXPECT_EQ(ends(1), ends(1));
  EXPECT_NE(ends(1), ends(2));
}

// --- faults by seed

enum class Fault { kNone, kDeath, kLargeProcessDies, kStop, kRevocation };

// What goes wrong in one seed: a pure function of it.
struct Scenario {
  explicit Scenario(uint64_t seed) : random(seed) {
    const int ranks_per_host = pick(1, 8);
    layout = {.size = pick(0, 3) == 0 ? pick(65, 140) : pick(2, 40),
              .ranks_per_host = ranks_per_host,
              .hosts_per_rack = pick(1, 4)};
    fault = static_cast<Fault>(pick(0, 4));
    rank = pick(0, layout.size - 1);
    at_ns = pick(0, 400) * kMillisecond;
    jitter = 0.1 * pick(0, 8);
    leaves_after_ns = pick(0, 1) * kMillisecond;
  }
  int pick(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); }

  std::mt19937_64 random;
  Layout layout;
  Fault fault = Fault::kNone;
  int rank = 0;
  int64_t at_ns = 0;
  double jitter = 0;
  int64_t leaves_after_ns = 0;  // when survivors close their connections
};

void begin(StarAndMesh& world, Scenario& scenario) {
  const bool sets_up = scenario.pick(0, 1) == 1;
  if (sets_up) {
    std::vector<int64_t> starts;
    for (int rank = 0; rank < scenario.layout.size; ++rank) {
      starts.push_back(scenario.pick(0, 20) * kMillisecond);
    }
    world.connect([starts](int rank) { return starts[static_cast<size_t>(rank)]; });
  } else {
    world.form_at_once();
  }
  world.network().call(
      [&] {
        switch (scenario.fault) {
          case Fault::kDeath:
            world.kill(scenario.rank);
            break;
          case Fault::kLargeProcessDies:
            world.kill(scenario.rank, 200 * kMillisecond);
            break;
          case Fault::kStop:
            world.stop(scenario.rank);
            break;
          case Fault::kRevocation:
            world.revoke(scenario.rank, revocation());
            break;
          case Fault::kNone:
            break;
        }
      },
      100 * kMillisecond + scenario.at_ns);
}

// All that must hold when such a world has come to rest; empty: it does.
std::string judge(const StarAndMesh& world, const Scenario& scenario) {
  if (!world.broken().empty()) {
    return world.broken();
  }
  std::set<std::string> stories;
  for (int rank = 0; rank < scenario.layout.size; ++rank) {
    const auto& cause = world.cause(rank);
    if (!world.is_alive(rank)) {
      continue;
    }
    if (cause.has_value() != (scenario.fault != Fault::kNone)) {
      return "rank " + std::to_string(rank) + (cause ? " lost " + cause->text : " goes on in a world that has ended");
    }
    if (cause && scenario.fault != Fault::kRevocation && cause->rank != scenario.rank) {
      return "rank " + std::to_string(cause->rank) + " is blamed";
    }
    if (cause) {
      stories.insert(cause->text);
    }
    const int64_t slowest_ns = scenario.fault == Fault::kStop ? 1'300 * kMillisecond : 300 * kMillisecond;
    if (cause && world.ended_ns(rank) > 100 * kMillisecond + scenario.at_ns + slowest_ns) {
      return "rank " + std::to_string(rank) + " heard of it late";
    }
  }
  return stories.size() > 1 ? "survivors tell different stories: " + *stories.begin() : "";
}

std::string run_seed(uint64_t seed, const Network::Cut& cut = nullptr) {
  Scenario scenario(seed);
  StarAndMesh world(scenario.layout, seed, {.jitter = scenario.jitter});
  world.network().set_cut(cut);
  world.leave_after_end(scenario.leaves_after_ns);
  begin(world, scenario);
  world.network().run(4 * kSecond);
  return judge(world, scenario);
}

uint64_t seeds() {
  const char* const text = std::getenv("FARANDOLE_SIMULATION_SEEDS");
  return text == nullptr ? 300 : std::strtoull(text, nullptr, 10);
}

TEST(Seeds, EveryWorldEndsForOneCauseInTime) {
  for (uint64_t seed = 0; seed < seeds(); ++seed) {
    ASSERT_EQ(run_seed(seed), "") << "seed " << seed;
  }
}

// Oracles that find nothing would pass, too. Each of these networks breaks what a design promises.

// How many of some seeds are found wrong.
int found(const Network::Cut& cut) {
  int wrong = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    wrong += run_seed(seed, cut).empty() ? 0 : 1;
  }
  return wrong;
}

TEST(Oracles, FindWorldInWhichCausesAreNotPassedOn) {
  EXPECT_GT(found([](int, int, const Message& message, int64_t) {
              return message.kind == MessageKind::kControl && message.control.kind == ControlKind::kRevoke;
            }),
            0);
}

TEST(Oracles, FindWorldInWhichOneRankHearsNothing) {
  EXPECT_GT(found([](int, int to, const Message& message, int64_t) {
              return to == 1 && (message.kind == MessageKind::kControl || message.kind == MessageKind::kEnd);
            }),
            0);
}

TEST(Oracles, FindHeartbeatsThatAreLost) {
  EXPECT_GT(found([](int from, int, const Message& message, int64_t) {
              return from == 0 && message.kind == MessageKind::kControl &&
                     message.control.kind == ControlKind::kHeartbeat;
            }),
            0);
}

TEST(Oracles, FindReportThatIsLost) {
  constexpr int kSize = 16;
  StarAndMesh world(layout_of(kSize));
  world.network().set_cut(
      [](int from, int, const Message& message, int64_t) { return from == 5 && message.kind == MessageKind::kReady; });
  run_barriers(world, kSize, 1);
  EXPECT_TRUE(world.done(0).empty());
}

TEST(Oracles, FindDecisionThatIsLost) {
  constexpr int kSize = 16;
  StarAndMesh world(layout_of(kSize));
  int decisions = 0;
  world.network().set_cut([&](int, int to, const Message& message, int64_t) {
    return to == 5 && message.kind == MessageKind::kDecision && ++decisions == 1;
  });
  run_barriers(world, kSize, 1);
  for (int rank = 0; rank < kSize; ++rank) {
    world.submit(rank, "another");
  }
  world.network().run(world.network().now_ns() + kSecond);
  EXPECT_NE(world.broken().find("decision 2 came after decision 0"), std::string::npos) << world.broken();
}

}  // namespace
}  // namespace farandole::scale
