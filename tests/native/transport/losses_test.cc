// How a world ends: ranks are threads here; see processes_test.cc for workers that are killed.
#include <atomic>
#include <thread>

#include "transport/worlds.h"

namespace farandole::transport::testing {
namespace {

class Losses : public ::testing::TestWithParam<Wiring> {};

bool all_revoked(const std::vector<std::unique_ptr<Mesh>>& meshes, int but = -1) {
  return std::all_of(meshes.begin(), meshes.end(), [but](const std::unique_ptr<Mesh>& mesh) {
    return mesh == nullptr || mesh->rank() == but || mesh->world_status().revoked();
  });
}

TEST_P(Losses, RevocationReachesAllRanksUnchanged) {
  Workers workers(GetParam(), 5);
  const auto meshes = workers.form();
  const auto began = base::now_ns();
  meshes[2]->world_status().revoke({4, Sign::kRevoked, "rank 4 was taken out of the world by a test"});
  ASSERT_TRUE(eventually([&] { return all_revoked(meshes); }));
  std::printf("a revoke reached all after %.2f ms\n", static_cast<double>(base::now_ns() - began) * 1e-6);
  for (const auto& mesh : meshes) {
    EXPECT_EQ(mesh->world_status().cause()->rank, 4);
    EXPECT_EQ(mesh->world_status().cause()->sign, Sign::kRevoked);
    EXPECT_EQ(mesh->world_status().cause()->text, "rank 4 was taken out of the world by a test");
    EXPECT_EQ(mesh->world_status().error().code(), base::Code::kWorkerLost);
  }
}

TEST_P(Losses, RevocationWakesSleepingEngine) {
  Workers workers(GetParam(), 2);
  const auto meshes = workers.form();
  meshes[1]->doorbell().prepare_sleep(Sleep::kMidway);
  meshes[0]->world_status().revoke({0, Sign::kRevoked, "rank 0 was taken out of the world"});
  ASSERT_TRUE(eventually([&] { return meshes[1]->world_status().revoked(); }));
  EXPECT_TRUE(eventually([&] { return workers.endpoint(1).arena().view().header().sleeping.load() == 0; }));
}

TEST_P(Losses, LongCausesAreTruncated) {
  Workers workers(GetParam(), 2);
  const auto meshes = workers.form();
  meshes[0]->world_status().revoke({1, Sign::kRevoked, std::string(100'000, 'x')});
  ASSERT_TRUE(eventually([&] { return meshes[1]->world_status().revoked(); }));
  EXPECT_EQ(meshes[1]->world_status().cause()->text, std::string(1024, 'x'));
}

// Each survivor polls its links all the time, and leaves as soon as it hears of the end. So many connections close, and
// only one of them is the lost worker's.
TEST_P(Losses, AllBlameLostWorkerAndNoneThatLeftAfterIt) {
  Workers workers(GetParam(), 5);
  for (uint64_t generation = 1; generation <= 15; ++generation) {
    auto meshes = workers.form(generation);
    const int lost = static_cast<int>(generation % 5);
    in_threads(5, [&](int rank) {
      std::unique_ptr<Mesh> mesh = std::move(meshes[static_cast<size_t>(rank)]);
      if (rank == lost) {
        return;  // ends without a goodbye
      }
      std::byte byte{};
      EXPECT_TRUE(eventually([&] {
        for (int peer = 0; peer < 5; ++peer) {
          if (peer != rank) {
            mesh->link(peer).try_recv({&byte, 1});
            mesh->link(peer).try_send({&byte, 1});
          }
        }
        return mesh->world_status().revoked();
      }));
      EXPECT_EQ(mesh->world_status().cause()->rank, lost);
      EXPECT_EQ(mesh->world_status().cause()->text, describe_loss(lost, Sign::kClosed));
    });
  }
}

TEST_P(Losses, GoodbyeIsNotLoss) {
  Workers workers(GetParam(), 4);
  auto meshes = workers.form();
  std::byte byte{5};
  EXPECT_EQ(meshes[3]->link(0).try_send({&byte, 1}), 1u);
  meshes[3]->say_goodbye();
  meshes[3].reset();
  // Data that the peer sent before it left can still be received; then there is nothing more, and the world does not
  // end.
  byte = std::byte{0};
  EXPECT_TRUE(eventually([&] { return meshes[0]->link(3).try_recv({&byte, 1}) == 1; }));
  EXPECT_EQ(byte, std::byte{5});
  // An end that is to come would come before this one, which goes the same ways.
  for (const auto& mesh : meshes) {
    if (mesh != nullptr) {
      EXPECT_EQ(mesh->link(3).try_recv({&byte, 1}), 0u);
    }
  }
  meshes[1]->world_status().revoke({1, Sign::kRevoked, "the end of the test"});
  ASSERT_TRUE(eventually([&] { return all_revoked(meshes); }));
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(meshes[static_cast<size_t>(rank)]->world_status().cause()->text, "the end of the test");
  }
}

TEST_P(Losses, WorkerThatHasLeftReportsNoLoss) {
  Workers workers(GetParam(), 3);
  auto meshes = workers.form();
  meshes[0]->say_goodbye();
  meshes[1].reset();
  ASSERT_TRUE(eventually([&] { return meshes[2]->world_status().revoked(); }));
  EXPECT_EQ(meshes[2]->world_status().cause()->rank, 1);
  EXPECT_FALSE(meshes[0]->world_status().revoked());
}

INSTANTIATE_TEST_SUITE_P(All, Losses, ::testing::ValuesIn(kAllWirings),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace farandole::transport::testing
