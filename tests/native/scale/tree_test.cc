// Agreement over a tree of hosts, simulated: the same comes of it as of the star, with fewer messages at each rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "scale/star_and_mesh.h"

namespace farandole::scale {
namespace {

using engine::Kind;
using engine::Request;

constexpr int64_t kHold = engine::SubtreeTally::kHoldNs;

void submit_everywhere(StarAndMesh& world, int size, const std::string& name) {
  for (int rank = 0; rank < size; ++rank) {
    world.submit(rank, name);
  }
}

// Does this many barriers, each when all have done the one before. Empty: each rank has done all of them without a
// message too many, and without waiting for what was held back.
std::string wrong_in_barriers(StarAndMesh& world, int barriers) {
  const int size = world.network().layout().size;
  for (int barrier = 0; barrier < barriers; ++barrier) {
    submit_everywhere(world, size, "barrier");
    world.network().run(world.network().now_ns() + kHold / 2);
  }
  if (!world.broken().empty()) {
    return world.broken();
  }
  for (int rank = 0; rank < size; ++rank) {
    if (world.done(rank).size() != static_cast<size_t>(barriers)) {
      return "rank " + std::to_string(rank) + " waits";
    }
    const auto neighbours = static_cast<uint64_t>(world.children(rank)) + (rank == 0 ? 0U : 1U);
    if (world.agreement_messages(rank) != 2 * neighbours * static_cast<uint64_t>(barriers)) {
      return "rank " + std::to_string(rank) + " has too many messages, or too few";
    }
  }
  return "";
}

class Trees : public ::testing::TestWithParam<Layout> {};

TEST_P(Trees, BarrierTakesOneMessageUpAndOneDownOnEachLinkOfTree) {
  StarAndMesh world(GetParam());
  constexpr int kBarriers = 5;
  EXPECT_EQ(wrong_in_barriers(world, kBarriers), "");
  const auto links = static_cast<uint64_t>(GetParam().size - 1);
  EXPECT_EQ(world.counts().up, links * kBarriers);
  EXPECT_EQ(world.counts().down, links * kBarriers);
  for (int rank = 0; rank < GetParam().size; ++rank) {
    EXPECT_LT(world.children(rank), GetParam().fanout + GetParam().ranks_per_host);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Trees,
                         ::testing::Values(Layout{.size = 1, .fanout = 2}, Layout{.size = 8, .fanout = 2},
                                           Layout{.size = 9, .fanout = 2},
                                           Layout{.size = 14, .ranks_per_host = 2, .fanout = 2},
                                           Layout{.size = 20, .ranks_per_host = 1, .fanout = 1},
                                           Layout{.size = 200, .fanout = 2}, Layout{.size = 1'024, .fanout = 16}),
                         [](const auto& info) {
                           return std::to_string(info.param.size) + "_ranks_" + std::to_string(info.param.fanout) +
                                  "_below";
                         });

// --- a rank that comes late

TEST(Tree, RankZeroLearnsWhoWaitsForWhomAndLateRankWaitsForNothing) {
  const Layout layout{.size = 14, .ranks_per_host = 2, .fanout = 2};
  constexpr int kLate = 9;  // on a host of the third level
  StarAndMesh world(layout);
  for (int rank = 0; rank < layout.size; ++rank) {
    if (rank != kLate) {
      world.submit(rank, "barrier");
    }
  }
  world.network().run(kSecond);
  ASSERT_EQ(world.waiting().size(), 1U);
  EXPECT_EQ(world.waiting().front().missing, std::vector<int>{kLate});
  EXPECT_LT(world.waiting().front().since_ns, kMillisecond);
  world.submit(kLate, "barrier");
  world.network().run(kSecond + kMillisecond);
  for (int rank = 0; rank < layout.size; ++rank) {
    EXPECT_EQ(world.done(rank).size(), 1U) << "rank " << rank;
  }
}

// --- as in a star, by seed

// What the ranks of one seed ask for: a pure function of it.
class Program {
 public:
  explicit Program(uint64_t seed) : random_(seed) {
    layout = {.size = pick(2, 24), .ranks_per_host = pick(1, 4), .hosts_per_rack = 4, .fanout = pick(1, 3)};
    jitter = 0.2 * pick(0, 4);
    for (int step = 0; step < 30; ++step) {
      add_step(step);
    }
  }

  Layout layout;
  double jitter = 0;

  void begin(StarAndMesh& world) const {
    for (const Submission& each : submissions_) {
      world.network().call([&world, &each] { world.submit(each.rank, each.request); }, each.at_ns);
    }
  }
  // Empty, or what is wrong with what has become of it.
  std::string judge(const StarAndMesh& world) const {
    if (!world.broken().empty()) {
      return world.broken();
    }
    std::map<int, std::vector<std::string>> asked;
    for (const Submission& each : submissions_) {
      asked[each.rank].push_back(each.request.name);
    }
    for (const auto& [rank, names] : asked) {
      if (world.done(rank).size() != names.size()) {
        return "rank " + std::to_string(rank) + " has done " + std::to_string(world.done(rank).size()) + " of " +
               std::to_string(names.size());
      }
    }
    return "";
  }

 private:
  struct Submission {
    int rank;
    int64_t at_ns;
    Request request;
  };

  int pick(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }

  // Each step has half a second, and a few names come again, so that some have bits. Ranks come when they come.
  void add_step(int step) {
    constexpr int64_t kStep = kSecond / 2;
    const int what = pick(0, 9);
    const std::string name = "tensor " + std::to_string(pick(0, 3));
    const int odd_one = pick(0, layout.size - 1);
    const bool is_late = pick(0, 3) == 0;
    for (int rank = 0; rank < layout.size; ++rank) {
      Request request;
      request.name = name;
      request.signature.kind = Kind::kAllreduce;
      request.signature.shape = {4};
      if (what == 0 && rank == odd_one) {
        request.signature.shape = {5};  // refused everywhere
      } else if (what == 1) {
        request.name += " gathered";
        request.signature.kind = Kind::kAllgather;
        request.signature.shape = {pick(1, 2), 3};
      } else if (what == 2) {
        request.name += " sent";
        request.signature.kind = Kind::kTransfer;
        request.signature.root = 0;
        request.signature.peer = layout.size - 1;
        if (rank != 0 && rank != layout.size - 1) {
          continue;
        }
      } else if (what == 3) {
        request.signature.kind = Kind::kJoin;
        request.name = "join";
        if (rank != odd_one) {
          Request before = request;  // which goes on without that one
          before.signature.kind = Kind::kAllreduce;
          before.signature.shape = {4};
          before.name = "uneven " + std::to_string(step);  // the one that has joined does not count it
          submissions_.push_back({rank, step * kStep + pick(0, 50) * kMillisecond, before});
        }
      }
      const bool waits = rank == odd_one && is_late && what != 3;
      const int64_t at_ns = step * kStep + (what == 3 && rank != odd_one ? 300 : 0) * kMillisecond +
                            (waits ? pick(250, 300) : pick(0, 30)) * kMillisecond;
      submissions_.push_back({rank, at_ns, std::move(request)});
    }
  }

  std::mt19937_64 random_;
  std::vector<Submission> submissions_;
};

// The third "tensor 1" that a rank has done is "tensor 1#3".
std::vector<std::string> numbered(const std::vector<std::string>& names) {
  std::map<std::string, int> times;
  std::vector<std::string> numbered;
  for (const std::string& name : names) {
    numbered.push_back(name + "#" + std::to_string(++times[name]));
  }
  return numbered;
}

// Whether two ranks have done what both have done in the same order.
bool agree(const std::vector<std::string>& one, const std::vector<std::string>& other) {
  const std::set<std::string> of_one(one.begin(), one.end());
  const std::set<std::string> of_other(other.begin(), other.end());
  const auto common = [](const std::vector<std::string>& names, const std::set<std::string>& of) {
    std::vector<std::string> both;
    std::ranges::copy_if(names, std::back_inserter(both), [&](const std::string& name) { return of.contains(name); });
    return both;
  };
  return common(one, of_other) == common(other, of_one);
}

std::string run_seed(uint64_t seed, const Network::Cut& cut = nullptr) {
  const Program program(seed);
  StarAndMesh tree(program.layout, seed, {.jitter = program.jitter});
  Layout of_star = program.layout;
  of_star.fanout = 0;
  StarAndMesh star(of_star, seed, {.jitter = program.jitter});
  tree.network().set_cut(cut);
  for (StarAndMesh* const world : {&tree, &star}) {
    program.begin(*world);
    world->network().run(20 * kSecond);
    if (std::string wrong = program.judge(*world); !wrong.empty()) {
      return (world == &tree ? "tree: " : "star: ") + wrong;
    }
  }
  for (int rank = 0; rank < program.layout.size; ++rank) {
    std::vector<std::string> done = tree.done(rank);
    if (!agree(numbered(done), numbered(tree.done(0)))) {
      return "rank " + std::to_string(rank) + " has another order than rank 0";
    }
    std::vector<std::string> expected = star.done(rank);
    std::ranges::sort(done);
    std::ranges::sort(expected);
    if (done != expected) {
      return "rank " + std::to_string(rank) + " has done something else than in a star";
    }
  }
  return "";
}

uint64_t seeds() {
  const char* const text = std::getenv("FARANDOLE_SIMULATION_SEEDS");
  return text == nullptr ? 100 : std::strtoull(text, nullptr, 10);
}

TEST(Tree, SameComesOfEachSeedAsInStar) {
  for (uint64_t seed = 0; seed < seeds(); ++seed) {
    ASSERT_EQ(run_seed(seed), "") << "seed " << seed;
  }
}

// --- what the oracles find

int found(const Network::Cut& cut) {
  int wrong = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    wrong += run_seed(seed, cut).empty() ? 0 : 1;
  }
  return wrong;
}

TEST(TreeOracles, FindForwardThatIsLost) {
  int reports = 0;
  EXPECT_GT(found([&](int, int to, const Message& message, int64_t) {
              return message.kind == MessageKind::kReady && to == 0 && ++reports % 10 == 0;
            }),
            10);
}

TEST(TreeOracles, FindDecisionThatIsNotPassedOn) {
  int decisions = 0;
  EXPECT_GT(found([&](int from, int, const Message& message, int64_t) {
              return message.kind == MessageKind::kDecision && from != 0 && ++decisions % 10 == 0;
            }),
            5);
}

TEST(TreeOracles, FindRankThatMiscountsItsSubtree) {
  const Layout layout{.size = 14, .ranks_per_host = 2, .fanout = 2};
  // Rank 2 believes that rank 13, of a host below rank 4, is on its own host: it waits for it in vain.
  StarAndMesh too_many(layout, 0, {}, 1.0, [](int rank, std::vector<int>& hosts) {
    if (rank == 2) {
      hosts[13] = 2;
    }
  });
  EXPECT_EQ(wrong_in_barriers(too_many, 1), "rank 0 waits");
  // Rank 2 believes that rank 3 is on a host of its own, which is none of those below it.
  StarAndMesh too_few(layout, 0, {}, 1.0, [](int rank, std::vector<int>& hosts) {
    if (rank == 2) {
      hosts[3] = 0;
    }
  });
  EXPECT_NE(wrong_in_barriers(too_few, 1), "");
}

}  // namespace
}  // namespace farandole::scale
