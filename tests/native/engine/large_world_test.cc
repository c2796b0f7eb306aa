// Engines of a world in which most links are made when they are needed first, on 33 hosts.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "support/worlds.h"
#include "transport/revocation_graph.h"

namespace farandole {
namespace {

using engine::Engine;
using reduce::Dtype;

constexpr int kSize = transport::kLargestWorldInWhichAllTellAll + 2;
constexpr int kPairs = kSize * (kSize - 1) / 2;
constexpr auto kSum = static_cast<float>(kPairs);

// All ranks of these worlds are threads of one process, with both ends of each connection.
constexpr rlim_t kOpenFiles = 10'000;

class LargeWorld : public ::testing::Test {
 protected:
  void SetUp() override {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max < kOpenFiles) {
      GTEST_SKIP() << "needs a hard limit of " << kOpenFiles << " open files";
    }
  }
};

// Runs body(rank, engine) on all ranks; then those that return true leave in good order, and the others die.
void in_large_world(const std::function<bool(int, Engine&)>& body) {
  testing::Meshes meshes(testing::Kind::kTree, kSize);
  testing::on_all_ranks(kSize, [&](int rank) {
    Engine engine({});
    engine.enter(meshes.form(rank), meshes.arena(rank));
    if (body(rank, engine)) {
      engine.leave(base::Deadline::after_seconds(testing::kPatience));
    }
  });
}

TEST_F(LargeWorld, CollectivesOfAllSizesAreRight) {
  in_large_world([](int rank, Engine& engine) {
    for (const size_t count : {size_t{1}, size_t{1'000}, size_t{70'001}}) {
      for (int step = 0; step < 3; ++step) {
        const std::vector<float> sums = testing::allreduce(engine, "x", std::vector(count, static_cast<float>(rank)));
        EXPECT_EQ(sums, std::vector(count, kSum));
      }
    }
    return true;
  });
}

TEST_F(LargeWorld, DataOfOneRankReachesAllFromAnyRoot) {
  in_large_world([](int rank, Engine& engine) {
    for (const int root : {kSize - 1, 0, 37}) {
      std::vector<int32_t> values(5'000, rank);
      engine::Request request = testing::request_of(engine::Kind::kBroadcast, "from " + std::to_string(root),
                                                    Dtype::kI32, {5'000}, values.data(), values.data());
      request.signature.root = root;
      testing::finish(engine, engine.submit({request}).front());
      EXPECT_EQ(values, std::vector<int32_t>(5'000, root));
    }
    return true;
  });
}

// The odd ranks are members; the lowest rank of each host is not, and counts for them.
TEST_F(LargeWorld, GroupMakesLinksOfItsOwn) {
  in_large_world([](int rank, Engine& engine) {
    std::vector<int64_t> odd;
    for (int member = 1; member < kSize; member += 2) {
      odd.push_back(member);
    }
    engine::Request request = testing::request_of(engine::Kind::kAddGroup, "odd", Dtype::kI64, odd);
    const auto completion = testing::finish(engine, engine.submit({request}).front());
    const auto group = static_cast<uint32_t>(completion->sizes.at(0));
    if (rank % 2 == 1) {
      EXPECT_EQ(testing::allreduce(engine, "x", {1.0F}, group), std::vector<float>{static_cast<float>(odd.size())});
    }
    EXPECT_EQ(testing::allreduce(engine, "end", {1.0F}), std::vector<float>{static_cast<float>(kSize)});
    return true;
  });
}

// Its engine ends without a goodbye, as when its process dies.
TEST_F(LargeWorld, AllHearOfDeathInTheMiddleOfCollective) {
  static constexpr int kDead = 41;
  in_large_world([](int rank, Engine& engine) {
    if (rank == kDead) {
      testing::allreduce(engine, "x", {1.0F});
      return false;
    }
    try {
      testing::allreduce(engine, "x", {1.0F});  // the death may come before its end
      testing::allreduce(engine, "y", std::vector(50'000, 1.0F));
      ADD_FAILURE() << "it cannot have completed";
    } catch (const base::Error& error) {
      EXPECT_EQ(error.code(), base::Code::kWorkerLost) << error.what();
      EXPECT_EQ(error.lost_rank(), kDead) << error.what();
    }
    return true;
  });
}

}  // namespace
}  // namespace farandole
