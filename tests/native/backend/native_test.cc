#include "backend/native/native.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <thread>

#include "transport/loopback/loopback.h"

namespace farandole::backend {
namespace {

using collective::AllreduceJob;
using collective::Group;

constexpr uint64_t kGeneration = 5;

// One rank of a loopback world of two on one host.
struct Rank {
  Rank(transport::LoopbackWorld& world, int rank)
      : mesh(world.mesh(rank)), frames(*mesh, {}), native(frames, world.arena(rank), Tuning{4096, "", {}}) {
    group.members = {0, 1};
    group.index = rank;
  }
  std::vector<float> sum(std::vector<float> values) {
    native.begin(++decision);
    native.run(group, choice(values), job_of(values), {});
    return values;
  }
  // Stages the first job; then, if this is the last worker to do so, reduces it for both.
  void stage(std::vector<float>& values) {
    native.begin(decision = 1);
    EXPECT_TRUE(native.stage(group, choice(values), job_of(values)));
  }
  void reduce_staged(std::vector<float>& values) { native.reduce_staged(group, choice(values), job_of(values)); }
  // Runs what has been staged, and reduced by that rank.
  void run_staged(std::vector<float>& values, int reduced_by) {
    AllreduceJob job = job_of(values);
    job.is_staged = true;
    job.reduced_by = reduced_by;
    native.run(group, choice(values), job, {});
  }
  collective::Choice choice(const std::vector<float>& values) const {
    return native.choose(group, {Operation::kAllreduce, MemoryKind::kHost, values.size() * 4});
  }
  static AllreduceJob job_of(std::vector<float>& values) {
    AllreduceJob job;
    job.pieces.push_back({values.data(), values.data(), values.size()});
    job.postscale.factor = 0.5;
    return job;
  }
  std::unique_ptr<transport::Mesh> mesh;
  transport::FrameMultiplexer frames;
  Native native;
  Group group;
  uint32_t decision = 0;
};

transport::LoopbackSettings two_workers() {
  transport::LoopbackSettings settings;
  settings.size = 2;
  settings.generation = kGeneration;
  return settings;
}

TEST(Native, AGroupOfOneScalesAndMovesNothing) {
  transport::LoopbackWorld world(two_workers());
  Rank rank(world, 0);
  rank.group = {3, {0}, 0};
  std::vector<int32_t> values = {7, -7};
  AllreduceJob job;
  job.dtype = reduce::Dtype::kI32;
  job.prescale.factor = 1.5;  // 10.5, truncated to 10 before the sum
  job.postscale = {3, 4};     // 7.5, truncated to 7
  job.pieces.push_back({values.data(), values.data(), 2});
  rank.native.begin(1);
  rank.native.run(rank.group, rank.native.choose(rank.group, {Operation::kAllreduce, MemoryKind::kHost, 8}), job, {});
  EXPECT_EQ(values, (std::vector<int32_t>{7, -7}));
}

TEST(Native, StagingIsReturnedToTheArena) {
  transport::LoopbackSettings settings = two_workers();
  settings.arena_bytes = size_t{1} << 20;
  transport::LoopbackWorld world(settings);
  for (int i = 0; i < 1000; ++i) {
    Rank rank(world, 0);
  }
}

TEST(Native, AnArenaWithoutRoomIsAnErrorThatSaysWhatToRaise) {
  transport::LoopbackWorld world(two_workers());
  const auto mesh = world.mesh(0);
  transport::FrameMultiplexer frames(*mesh, {});
  try {
    const Native native(frames, world.arena(0), Tuning{size_t{1} << 40, "", {}});
    FAIL() << "it cannot have fit";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("FARANDOLE_ARENA_BYTES"), std::string::npos);
  }
}

TEST(Native, OneWorkerReducesForAllWhatAllHaveStaged) {
  for (const int last : {0, 1}) {
    transport::LoopbackWorld world(two_workers());
    std::array<Rank, 2> ranks = {Rank(world, 0), Rank(world, 1)};
    std::array<std::vector<float>, 2> values = {std::vector<float>{1, 2}, std::vector<float>{10, 20}};
    ranks[0].stage(values[0]);
    ranks[1].stage(values[1]);
    ranks[last].reduce_staged(values[last]);
    for (const int rank : {0, 1}) {
      ranks[rank].run_staged(values[rank], last);
      EXPECT_EQ(values[rank], (std::vector<float>{5.5, 11}));
    }
  }
}

TEST(Native, WorkerDoesNotReduceForAllWhatItReadFromALaterGeneration) {
  transport::LoopbackWorld world(two_workers());
  Rank first(world, 0);
  Rank second(world, 1);
  std::vector<float> values = {1};
  second.stage(values);
  first.stage(values);
  second.mesh->arena(1)->serve(transport::kNoGeneration);
  try {
    first.reduce_staged(values);
    ADD_FAILURE() << "others would have taken a number that cannot be trusted";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.lost_rank(), 1);
  }
}

TEST(Native, ResultReadFromWorkerInLaterGenerationIsDiscarded) {
  transport::LoopbackWorld world(two_workers());
  Rank first(world, 0);
  Rank second(world, 1);
  // The second worker takes part in the reduction, but its memory has been marked for another generation.
  second.mesh->arena(1)->serve(transport::kNoGeneration);
  std::thread other([&] { EXPECT_THROW(second.sum({1}), base::Error); });
  try {
    first.sum({1});
    ADD_FAILURE() << "a number that cannot be trusted was given out";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kWorkerLost);
    EXPECT_EQ(error.lost_rank(), 1);
  }
  other.join();
}

}  // namespace
}  // namespace farandole::backend
