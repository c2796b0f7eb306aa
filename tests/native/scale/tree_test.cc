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
    EXPECT_LT(world.children(rank), GetParam().fanout.value_or(engine::kUsualFanout) + GetParam().ranks_per_host);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Trees,
                         ::testing::Values(Layout{.size = 1, .fanout = 2}, Layout{.size = 8, .fanout = 2},
                                           Layout{.size = 9, .fanout = 2},
                                           Layout{.size = 14, .ranks_per_host = 2, .fanout = 2},
                                           Layout{.size = 20, .ranks_per_host = 1, .fanout = 1},
                                           Layout{.size = 200, .fanout = 2}, Layout{.size = 72}, Layout{.size = 1'024}),
                         [](const auto& info) {
                           const auto& fanout = info.param.fanout;
                           return std::to_string(info.param.size) + "_ranks_" +
                                  (fanout ? std::to_string(*fanout) + "_below" : "as_usual");
                         });

TEST(Tree, WorldOfMoreThanEightHostsIsOneUnlessItIsSetOtherwise) {
  const auto children_of_rank_0 = [](int hosts, std::optional<int> fanout) {
    return StarAndMesh({.size = 2 * hosts, .ranks_per_host = 2, .fanout = fanout}).children(0);
  };
  EXPECT_EQ(children_of_rank_0(8, {}), 15);
  EXPECT_EQ(children_of_rank_0(9, {}), 9);
  EXPECT_EQ(children_of_rank_0(40, {}), 17);
  EXPECT_EQ(children_of_rank_0(40, 0), 79);
  EXPECT_EQ(children_of_rank_0(40, 3), 4);
}

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

enum class Hosts { kFew, kMany };

// What the ranks of one seed ask for: a pure function of it. Worlds of many hosts have more than eight, and most of
// them choose their tree themselves.
class Program {
 public:
  Program(uint64_t seed, Hosts hosts) : random_(seed) {
    if (hosts == Hosts::kFew) {
      layout = {.size = pick(2, 24), .ranks_per_host = pick(1, 4), .hosts_per_rack = 4, .fanout = pick(1, 3)};
    } else {
      const int ranks_per_host = pick(1, 4);
      layout = {.size = pick(9, 40) * ranks_per_host - pick(0, ranks_per_host - 1),
                .ranks_per_host = ranks_per_host,
                .hosts_per_rack = 4};
      if (pick(0, 3) == 0) {
        layout.fanout = pick(1, 20);
      }
    }
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
  int pick(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }

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

std::string run_seed(uint64_t seed, Hosts hosts, const Network::Cut& cut = nullptr) {
  const Program program(seed, hosts);
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
    ASSERT_EQ(run_seed(seed, Hosts::kFew), "") << "seed " << seed;
  }
}

TEST(Tree, SameComesOfEachSeedOfManyHostsAsInStar) {
  for (uint64_t seed = 0; seed < seeds(); ++seed) {
    ASSERT_EQ(run_seed(seed, Hosts::kMany), "") << "seed " << seed;
  }
}

// --- a rank dies

constexpr int64_t kLatestNews = 300 * kMillisecond;

// The world whose ranks are those of a layout that still live.
class NextWorld {
 public:
  NextWorld(const Layout& before, const std::set<int>& dead) {
    std::map<int, int> leaders;  // by host
    for (int rank = 0; rank < before.size; ++rank) {
      if (!dead.contains(rank)) {
        const int next = static_cast<int>(hosts_.size());
        hosts_.push_back(leaders.emplace(before.host_of(rank), next).first->second);
      }
    }
    layout_ = before;
    layout_.size = static_cast<int>(hosts_.size());
  }
  // Empty, or what is wrong with some barriers that its ranks do.
  std::string try_barriers() const {
    StarAndMesh world(layout_, 0, {}, 1.0, [this](int, std::vector<int>& hosts) { hosts = hosts_; });
    const std::string wrong = wrong_in_barriers(world, 3);
    return wrong.empty() ? "" : "in the next world: " + wrong;
  }

 private:
  Layout layout_;
  std::vector<int> hosts_;
};

// Kills a rank at a message of agreement, before it is sent or before it has come. Oracles let further messages be
// lost.
class Killer {
 public:
  enum class Victim { kSender, kReceiver };

  Killer(StarAndMesh& world, int at_message, Victim victim, const Network::Cut& lost = nullptr) : world_(world) {
    world.network().set_cut([this, at_message, victim, lost](int from, int to, const Message& message, int64_t now_ns) {
      if (lost && lost(from, to, message, now_ns)) {
        return true;
      }
      const bool is_agreement = message.kind == MessageKind::kReady || message.kind == MessageKind::kDecision;
      if (is_agreement && messages_++ == at_message) {
        dead_ = victim == Victim::kSender ? from : to;
        at_ns_ = now_ns;
        world_.network().call([this] { world_.kill(dead_); }, now_ns);
        return victim == Victim::kSender;
      }
      return false;
    });
  }
  int messages() const { return messages_; }
  bool has_killed() const { return dead_ >= 0; }

  // Empty, or what is wrong with the survivors.
  std::string judge(const Layout& layout) const {
    if (!world_.broken().empty()) {
      return world_.broken();
    }
    const int first = dead_ == 0 ? 1 : 0;
    for (int rank = 0; rank < layout.size; ++rank) {
      if (rank == dead_) {
        continue;
      }
      const std::string name = "rank " + std::to_string(rank);
      const auto& cause = world_.cause(rank);
      if (!cause || cause->rank != dead_) {
        return name + (cause ? " blames rank " + std::to_string(cause->rank) : " goes on");
      }
      if (world_.ended_ns(rank) > at_ns_ + kLatestNews) {
        return name + " heard of it late";
      }
      if (!agree(numbered(world_.done(rank)), numbered(world_.done(first)))) {
        return name + " has another order than rank " + std::to_string(first);
      }
    }
    return NextWorld(layout, {dead_}).try_barriers();
  }

 private:
  StarAndMesh& world_;
  int messages_ = 0;
  int dead_ = -1;
  int64_t at_ns_ = 0;
};

// Lets all ranks do some barriers, one of which some ranks come late to, and kills one at that message. Empty: all is
// as it must be.
std::string kill_at(const Layout& layout, int message, Killer::Victim victim, int& messages,
                    const Network::Cut& lost = nullptr) {
  StarAndMesh world(layout, 0, {.jitter = 0.2});
  world.form_at_once();
  world.leave_after_end(0);
  const Killer killer(world, message, victim, lost);
  for (int barrier = 0; barrier < 4; ++barrier) {
    for (int rank = 0; rank < layout.size; ++rank) {
      const bool is_late = barrier == 2 && rank % 5 == 1;
      world.network().call([&world, rank] { world.submit(rank, "barrier"); },
                           barrier * kSecond + (is_late ? 3 * kHold / 2 : 0) + rank * kMicrosecond);
    }
  }
  world.network().run(5 * kSecond);
  messages = killer.messages();
  return killer.has_killed() ? killer.judge(layout) : "";
}

class Kills : public ::testing::TestWithParam<Layout> {};

TEST_P(Kills, SurvivorsOfDeathAtEachMessageAgreeAndFormNextWorld) {
  int messages = 0;
  ASSERT_EQ(kill_at(GetParam(), INT32_MAX, Killer::Victim::kSender, messages), "");
  ASSERT_GE(messages, 8 * (GetParam().size - 1));
  for (const auto victim : {Killer::Victim::kSender, Killer::Victim::kReceiver}) {
    for (int message = 0, of = messages; message < of; ++message) {
      ASSERT_EQ(kill_at(GetParam(), message, victim, messages), "")
          << (victim == Killer::Victim::kSender ? "the sender" : "the receiver") << " of message " << message;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Kills,
                         ::testing::Values(Layout{.size = 9, .ranks_per_host = 1},
                                           Layout{.size = 18, .ranks_per_host = 2},
                                           Layout{.size = 36, .ranks_per_host = 2},
                                           Layout{.size = 20, .ranks_per_host = 2, .fanout = 2}),
                         [](const auto& info) {
                           return std::to_string(info.param.size) + "_ranks_on_" + std::to_string(info.param.hosts()) +
                                  "_hosts_" + (info.param.fanout ? "two_below" : "as_usual");
                         });

// The rank dies at one of the messages that the program has without a death.
std::string run_seed_with_death(uint64_t seed) {
  Program program(seed, Hosts::kMany);
  StarAndMesh alive(program.layout, seed, {.jitter = program.jitter});
  program.begin(alive);
  alive.network().run(20 * kSecond);
  const auto messages = static_cast<int>(alive.counts().up + alive.counts().down);

  StarAndMesh world(program.layout, seed, {.jitter = program.jitter});
  world.form_at_once();
  world.leave_after_end(program.pick(0, 1) * kMillisecond);
  const auto victim = program.pick(0, 1) == 0 ? Killer::Victim::kSender : Killer::Victim::kReceiver;
  const Killer killer(world, program.pick(0, messages * 9 / 10), victim);
  program.begin(world);
  world.network().run(20 * kSecond);
  return killer.has_killed() ? killer.judge(program.layout) : "nobody has died";
}

TEST(Tree, SurvivorsOfEachSeedOfManyHostsAgreeAndFormNextWorld) {
  for (uint64_t seed = 0; seed < seeds(); ++seed) {
    ASSERT_EQ(run_seed_with_death(seed), "") << "seed " << seed;
  }
}

// --- what the oracles find

int found(const Network::Cut& cut) {
  int wrong = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    wrong += run_seed(seed, Hosts::kFew, cut).empty() ? 0 : 1;
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

TEST(TreeOracles, FindSurvivorThatGoesOn) {
  int messages = 0;
  const auto tells_rank_5 = [](int, int to, const Message& message, int64_t) {
    return to == 5 && (message.kind == MessageKind::kControl || message.kind == MessageKind::kEnd);
  };
  EXPECT_EQ(kill_at({.size = 18, .ranks_per_host = 2}, 40, Killer::Victim::kSender, messages), "");
  EXPECT_NE(kill_at({.size = 18, .ranks_per_host = 2}, 40, Killer::Victim::kSender, messages, tells_rank_5), "");
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
