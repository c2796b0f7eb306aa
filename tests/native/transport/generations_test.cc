#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "transport/worlds.h"

namespace farandole::transport::testing {
namespace {

class Generations : public ::testing::TestWithParam<Wiring> {};

TEST_P(Generations, NextWorldMayHaveFewerMoreAndOtherMembers) {
  Workers workers(GetParam(), 5);
  const std::vector<std::vector<int>> worlds = {{0, 1, 2, 3}, {0, 2, 3}, {3, 2, 0, 4}, {4}, {1, 4}, {0, 1, 2, 3, 4}};
  for (uint64_t generation = 1; generation <= 20; ++generation) {
    const auto& members = worlds[generation % worlds.size()];
    const auto meshes = workers.form(members, generation);
    for (const auto& mesh : meshes) {
      EXPECT_EQ(mesh->generation(), generation);
      EXPECT_EQ(mesh->size(), static_cast<int>(members.size()));
      EXPECT_FALSE(mesh->world_status().revoked());
    }
    exchange_bytes(meshes, 3'001);
    for (const auto& mesh : meshes) {
      mesh->say_goodbye();
    }
  }
}

TEST_P(Generations, EndedWorldsKeepNoDescriptors) {
  Workers workers(GetParam(), 4);
  workers.form(1);
  const int before = open_descriptors();
  for (uint64_t generation = 2; generation <= 21; ++generation) {
    workers.form(generation);
  }
  EXPECT_EQ(open_descriptors(), before);
}

// A worker ends its world without a word when others are already waiting for it in the next one.
TEST_P(Generations, NextWorldStartsWhileSomeWorkersAreStillInLastOne) {
  Workers workers(GetParam(), 3);
  auto meshes = workers.form(1);
  meshes[0]->world_status().revoke({2, Sign::kRevoked, "rank 2 was taken out of the world"});
  meshes[0].reset();
  std::vector<std::unique_ptr<Mesh>> next(2);
  in_threads(2, [&](int rank) {
    if (rank == 1) {
      EXPECT_TRUE(eventually([&] { return meshes[1]->world_status().revoked(); }));
      meshes[1].reset();
    }
    next[static_cast<size_t>(rank)] =
        workers.endpoint(rank).form(workers.world({0, 1}, rank, 2), base::Deadline::after_seconds(kPatience));
  });
  ASSERT_TRUE(next[0] && next[1]);
  exchange_bytes(next, 3'001);
  EXPECT_FALSE(next[0]->world_status().revoked());
}

INSTANTIATE_TEST_SUITE_P(All, Generations, ::testing::ValuesIn(kAllWirings),
                         [](const auto& info) { return name_of(info.param); });

// A worker that is left out but still runs has our memory: it must not reach what we use from now on.
TEST(Fence, ExcludedWorkerCannotReachMemory) {
  Workers workers(Wiring::kShm, 3);
  auto meshes = workers.form(1);
  auto* const tensor = static_cast<std::byte*>(workers.endpoint(0).arena().allocate(8192));
  const size_t offset = workers.endpoint(0).arena().view().offset_of(tensor);
  std::memset(tensor, 1, 8192);

  meshes[0]->world_status().revoke({2, Sign::kSilent, describe_loss(2, Sign::kSilent)});
  ASSERT_TRUE(eventually([&] { return meshes[1]->world_status().revoked(); }));
  meshes[0].reset();
  meshes[1].reset();
  const auto next = workers.form({0, 1}, 2);

  EXPECT_TRUE(std::all_of(tensor, tensor + 8192, [](std::byte b) { return b == std::byte{1}; }));
  meshes[2]->arena(0)->base[offset] = std::byte{9};
  EXPECT_EQ(tensor[0], std::byte{1});
  next[1]->arena(0)->base[offset] = std::byte{7};
  EXPECT_EQ(tensor[0], std::byte{7});
  exchange_bytes(next, 100'001);
}

// With no worker left that could write to it, the memory stays as it is: touching it anew would cost.
TEST(Fence, MemoryStaysIfOnlyMembersAndDeadWorkersHaveIt) {
  Workers workers(Wiring::kShm, 3);
  auto meshes = workers.form(1);
  const int memory = workers.endpoint(0).arena().fd();
  meshes[2].reset();  // ends without a goodbye
  ASSERT_TRUE(eventually([&] { return meshes[0]->world_status().revoked() && meshes[1]->world_status().revoked(); }));
  meshes.clear();
  const auto next = workers.form({0, 1}, 2);
  EXPECT_EQ(workers.endpoint(0).arena().fd(), memory);
}

TEST(FormTest, RefusesInvalidWorlds) {
  Workers workers(Wiring::kShm, 2);
  const auto deadline = base::Deadline::after_seconds(kPatience);
  const auto code_of = [&](const World& world) {
    try {
      workers.endpoint(0).form(world, deadline);
    } catch (const base::Error& error) {
      return error.code();
    }
    return base::Code::kOk;
  };
  EXPECT_EQ(code_of(workers.world({0, 1}, 1, 1)), base::Code::kInvalidArgument);  // the other's rank
  EXPECT_EQ(code_of(workers.world({0, 1}, 2, 1)), base::Code::kInvalidArgument);
  EXPECT_EQ(code_of(workers.world({0, 1}, -1, 1)), base::Code::kInvalidArgument);
  EXPECT_EQ(code_of(workers.world({0, 1, 1}, 0, 1)), base::Code::kInvalidArgument);
  World alone;
  EXPECT_EQ(code_of(alone), base::Code::kOk);
  const auto mesh = workers.endpoint(0).form(alone, deadline);
  EXPECT_EQ(code_of(alone), base::Code::kInvalidArgument);  // the last one still lives
}

TEST(EndpointTest, ErrorNamesAddressThatCannotBeListenedOn) {
  for (const char* address : {"192.0.2.1", "0.0.0.0", "::", "0:0::0", "fe80::1", "not an address"}) {
    EndpointSettings settings = settings_for(Wiring::kShm);
    settings.listen_addresses = {address};
    try {
      const Endpoint endpoint(settings);
      ADD_FAILURE() << "listens on " << address;
    } catch (const base::Error& error) {
      EXPECT_NE(std::string(error.what()).find(address), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace farandole::transport::testing
