// Engines that agree over a tree of hosts: what is particular to that. That all else is as in a star, the other tests
// of this room show with worlds of kind kTree.
#include <gtest/gtest.h>

#include <optional>

#include "engine/agreement_tree.h"
#include "support/worlds.h"

namespace farandole {
namespace {

using engine::Engine;
using testing::in_world;
using World = testing::Kind;

// Rank 2 counts for rank 3, and rank 4 for rank 5: neither is a member.
TEST(AgreementOverTree, LeaderOfHostNeedNotBeMemberOfGroup) {
  in_world(World::kTree, 6, {}, [](int rank, Engine& engine) {
    engine::Request request = testing::request_of(engine::Kind::kAddGroup, "odd", reduce::Dtype::kI64, {1, 3, 5});
    const auto completion = testing::finish(engine, engine.submit({request}).front());
    const auto group = static_cast<uint32_t>(completion->sizes.at(0));
    for (int step = 0; step < 5; ++step) {  // from the third one on as a bit
      if (rank % 2 == 1) {
        ASSERT_EQ(testing::allreduce(engine, "x", {1.0F}, group), std::vector<float>{3.0F});
      }
    }
    ASSERT_EQ(testing::allreduce(engine, "end", {1.0F}), std::vector<float>{6.0F});
  });
}

// A world in which rank 3 is set otherwise than the others.
void expect_ranks_are_told(World kind, int size, std::optional<int> others, std::optional<int> of_rank_3) {
  testing::Meshes meshes(kind, size);
  testing::on_all_ranks(size, [&](int rank) {
    engine::EngineSettings settings;
    settings.agreement_fanout = rank == 3 ? of_rank_3 : others;
    Engine engine(settings);
    try {
      engine.enter(meshes.form(rank), meshes.arena(rank));  // others may have ended the world before this is done
      testing::allreduce(engine, "x", {1.0F});
      ADD_FAILURE() << "it cannot have completed";
    } catch (const base::Error& error) {
      EXPECT_NE(std::string(error.what()).find("FARANDOLE_AGREEMENT_FANOUT"), std::string::npos) << error.what();
    }
    engine.leave(base::Deadline::after_seconds(testing::kPatience));
  });
}

TEST(AgreementOverTree, RanksWithDifferentSettingsAreToldSo) {
  expect_ranks_are_told(World::kTree, 4, 1, 0);
  expect_ranks_are_told(World::kTree, 4, 1, {});  // two hosts are a star
}

// Without shared memory, each rank is a host of its own.
TEST(AgreementOverTree, NineHostsAreTreeAndRankThatIsSetToStarIsToldSo) {
  constexpr int kHosts = 9;
  expect_ranks_are_told(World::kTcp, kHosts, {}, 0);
  in_world(World::kTcp, kHosts, {}, [](int, Engine& engine) {
    for (int step = 0; step < 5; ++step) {
      ASSERT_EQ(testing::allreduce(engine, "x", {1.0F}), std::vector<float>{kHosts});
    }
  });
}

TEST(AgreementOverTree, UsualNumberOfHostsMayBeSetOnSomeRanks) {
  constexpr int kHosts = 9;
  testing::Meshes meshes(World::kTcp, kHosts);
  testing::on_all_ranks(kHosts, [&](int rank) {
    engine::EngineSettings settings;
    if (rank % 2 == 0) {
      settings.agreement_fanout = engine::kUsualFanout;
    }
    Engine engine(settings);
    auto mesh = meshes.form(rank);
    engine.enter(std::move(mesh), meshes.arena(rank));
    EXPECT_EQ(testing::allreduce(engine, "x", {1.0F}), std::vector<float>{kHosts});
    engine.leave(base::Deadline::after_seconds(testing::kPatience));
  });
}

}  // namespace
}  // namespace farandole
