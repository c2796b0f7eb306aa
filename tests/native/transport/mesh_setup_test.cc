#include <algorithm>
#include <tuple>

#include "transport/worlds.h"

namespace farandole::transport::testing {
namespace {

class Worlds : public ::testing::TestWithParam<std::tuple<Wiring, int>> {
 protected:
  Wiring wiring() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  bool share(int a, int b) const {
    return a == b || wiring() == Wiring::kShm || (wiring() == Wiring::kTwoHosts && a % 2 == b % 2);
  }
};

TEST_P(Worlds, RanksKnowTheirHosts) {
  Workers workers(wiring(), size());
  const auto meshes = workers.form();
  for (const auto& mesh : meshes) {
    ASSERT_EQ(static_cast<int>(mesh->hosts().size()), size());
    for (int rank = 0; rank < size(); ++rank) {
      int lowest = 0;
      while (!share(rank, lowest)) {
        ++lowest;
      }
      EXPECT_EQ(mesh->hosts()[static_cast<size_t>(rank)], lowest);
      EXPECT_EQ(mesh->arena(rank) != nullptr, share(mesh->rank(), rank));
    }
    EXPECT_EQ(mesh->size(), size());
    EXPECT_EQ(mesh->generation(), 1u);
  }
}

TEST_P(Worlds, CarryBytesInOrderOnEveryLink) {
  Workers workers(wiring(), size());
  const auto meshes = workers.form();
  exchange_bytes(meshes, 300'001);  // several times around a ring buffer
}

TEST_P(Worlds, SeeEachOthersArenas) {
  Workers workers(wiring(), size());
  const auto meshes = workers.form();
  for (const auto& mesh : meshes) {
    auto* const block = static_cast<std::byte*>(workers.endpoint(mesh->rank()).arena().allocate(4096));
    ASSERT_NE(block, nullptr);
    const size_t offset = workers.endpoint(mesh->rank()).arena().view().offset_of(block);
    for (const auto& other : meshes) {
      if (const ArenaView* view = other->arena(mesh->rank()); view != nullptr) {
        view->base[offset + static_cast<size_t>(other->rank())] = static_cast<std::byte>(100 + other->rank());
        EXPECT_EQ(block[other->rank()], static_cast<std::byte>(100 + other->rank()));
        EXPECT_EQ(view->header().generation.load(), 1u);
      }
    }
    workers.endpoint(mesh->rank()).arena().release(block);
  }
}

TEST_P(Worlds, LiveUntilRanksLeave) {
  Workers workers(wiring(), size());
  auto meshes = workers.form();
  for (const auto& mesh : meshes) {
    EXPECT_FALSE(mesh->world_status().revoked());
    mesh->say_goodbye();
  }
  for (const auto& mesh : meshes) {
    EXPECT_FALSE(mesh->world_status().revoked());
  }
}

INSTANTIATE_TEST_SUITE_P(All, Worlds,
                         ::testing::Combine(::testing::ValuesIn(kAllWirings), ::testing::Values(1, 2, 3, 4, 8)),
                         [](const auto& info) {
                           return name_of(std::get<0>(info.param)) + "_" + std::to_string(std::get<1>(info.param));
                         });

TEST(Describe, NamesKindsOfLinks) {
  EXPECT_EQ(Workers(Wiring::kShm, 1).form().front()->describe(), "alone");
  EXPECT_EQ(Workers(Wiring::kShm, 2).form().front()->describe(), "shm");
  EXPECT_EQ(Workers(Wiring::kTcp6, 2).form().front()->describe(), "tcp");
  EXPECT_EQ(Workers(Wiring::kTwoHosts, 3).form().front()->describe(), "shm+tcp");
}

TEST(Describe, NamesTheRouteToEachRank) {
  Workers workers(Wiring::kTwoHosts, 3);
  const auto meshes = workers.form();
  EXPECT_EQ(meshes[0]->describe_route(2), "shared memory");
  EXPECT_EQ(meshes[0]->describe_route(1), "127.0.0.1 -> 127.0.0.1");
}

TEST(Wake, WakesSleepingWorkerWithSharedMemory) {
  Workers workers(Wiring::kShm, 2);
  const auto meshes = workers.form();
  Doorbell& doorbell = meshes[1]->doorbell();
  doorbell.prepare_sleep(Sleep::kMidway);
  meshes[0]->wake(1, Sleep::kMidway);
  EXPECT_EQ(workers.endpoint(1).arena().view().header().sleeping.load(), 0u);
  doorbell.end_sleep();
}

}  // namespace
}  // namespace farandole::transport::testing
