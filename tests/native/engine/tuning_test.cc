// Autotuning in worlds of threads: all ranks change their knobs at one point of the common order, and results stay
// right.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "support/worlds.h"

namespace farandole {
namespace {

using collective::Knobs;
using engine::Engine;
using engine::EngineSettings;
using engine::Handle;
using engine::TuningReport;
using reduce::Dtype;
using testing::Kind;

// A sample a step, so that nearly every step changes something.
EngineSettings restless() {
  EngineSettings settings;
  settings.piece_bytes = 128 << 10;
  settings.autotune = true;
  settings.tuner = {.warmup_samples = 1, .steps_per_sample = 1, .max_samples = 30, .shortest_sample_ns = 0};
  return settings;
}

// Submits some allreduces at once, waits for all, and says whether every element is right.
bool step_is_right(Engine& engine, int rank, int size) {
  constexpr size_t kCounts[] = {1, 300, 5'000, 60'000};
  std::vector<std::vector<float>> tensors;
  std::vector<engine::Request> requests;
  for (const size_t count : kCounts) {
    std::vector<float>& values = tensors.emplace_back(count);
    std::iota(values.begin(), values.end(), static_cast<float>(rank));
    requests.push_back(testing::allreduce_request("grad." + std::to_string(count), Dtype::kF32,
                                                  {static_cast<int64_t>(count)}, values.data(), values.data()));
  }
  for (const Handle handle : engine.submit(std::move(requests))) {
    testing::finish(engine, handle);
  }
  const int sum_of_ranks = size * (size - 1) / 2;
  const auto ranks = static_cast<float>(sum_of_ranks);
  for (const std::vector<float>& values : tensors) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] != static_cast<float>(i * static_cast<size_t>(size)) + ranks) {
        return false;
      }
    }
  }
  return true;
}

class Tuning : public ::testing::TestWithParam<std::tuple<Kind, int>> {};

TEST_P(Tuning, ResultsStayRightWhileKnobsChange) {
  const auto [kind, size] = GetParam();
  std::atomic<int> wrong = 0;
  TuningReport report;
  testing::in_world(kind, size, restless(), [&](int rank, Engine& engine) {
    // The search takes two steps a sample at most, and the verification six samples.
    for (int step = 0; step < 90; ++step) {
      wrong += step_is_right(engine, rank, size) ? 0 : 1;
    }
    if (rank == 0) {
      report = engine.tuning();
    } else {
      EXPECT_FALSE(engine.tuning().on) << "it is rank 0's";
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(report.done) << report.summary;
  EXPECT_EQ(report.samples.empty(), size == 1);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Tuning,
                         ::testing::Combine(::testing::Values(Kind::kLoopback, Kind::kLoopbackLinks, Kind::kTwoHosts,
                                                              Kind::kTree),
                                            ::testing::ValuesIn(testing::kWorldSizes)));

// The ring_bytes with which the members of a world work, when rank 0 has settings of its own.
std::vector<uint64_t> ring_bytes_of_all(const EngineSettings& settings_of_rank_0,
                                        const std::optional<Knobs>& kept_by_rank_0) {
  constexpr int kSize = 3;
  std::vector<uint64_t> all(kSize);
  testing::Meshes meshes(Kind::kLoopbackLinks, kSize);
  testing::on_all_ranks(kSize, [&](int rank) {
    Engine engine(rank == 0 ? settings_of_rank_0 : EngineSettings());
    if (rank == 0 && kept_by_rank_0) {
      engine.keep(*kept_by_rank_0);
    }
    engine.enter(meshes.form(rank), meshes.arena(rank));
    testing::allreduce(engine, "x", {1});
    all[static_cast<size_t>(rank)] = engine.tuning().knobs.ring_bytes;
    engine.leave(base::Deadline::after_seconds(testing::kPatience));
  });
  return all;
}

TEST(Knobs, Rank0SetsThemForAll) {
  EXPECT_EQ(ring_bytes_of_all({}, std::nullopt), std::vector(3, Knobs().ring_bytes));
  EngineSettings settings;
  settings.knobs.ring_bytes = 1000;
  EXPECT_EQ(ring_bytes_of_all(settings, std::nullopt), std::vector<uint64_t>(3, 1000));
}

TEST(Knobs, KeptValuesAreUsedUnlessUserHasSetOthers) {
  Knobs kept;
  kept.ring_bytes = 1000;
  EXPECT_EQ(ring_bytes_of_all({}, kept), std::vector<uint64_t>(3, 1000));
  EngineSettings settings;
  settings.fixed_knobs = {"ring_bytes"};
  EXPECT_EQ(ring_bytes_of_all(settings, kept), std::vector(3, Knobs().ring_bytes));
}

TEST(Choose, ReturnsAlgorithmAndReason) {
  testing::in_world(Kind::kLoopback, 2, {}, [](int, Engine& engine) {
    const auto choice = engine.choose(engine::Kind::kAllreduce, engine::ReduceOp::kSum, 0, 1000);
    EXPECT_EQ(std::string(choice.algorithm->name), "direct");
    EXPECT_NE(std::string(choice.reason), "");
    testing::allreduce(engine, "x", {1});  // nobody leaves before all have asked
  });
}

TEST(Choose, RefusesKindsWithoutAlgorithm) {
  testing::in_world(Kind::kLoopback, 1, {}, [](int, Engine& engine) {
    EXPECT_THROW(engine.choose(engine::Kind::kBarrier, engine::ReduceOp::kSum, 0, 0), base::Error);
    EXPECT_THROW(engine.choose(engine::Kind::kAllreduce, engine::ReduceOp::kSum, 7, 0), base::Error);
  });
}

TEST(Knobs, ExtremeValuesAreBroughtWithinBounds) {
  EngineSettings settings;
  settings.piece_bytes = 4096;
  settings.knobs = {
      .fusion_threshold = 0, .chunk_bytes = 0, .small_bytes = UINT64_MAX, .ring_bytes = 0, .link_chunk_bytes = 0};
  for (const Kind kind : {Kind::kLoopback, Kind::kTwoHosts}) {
    std::atomic<int> wrong = 0;
    testing::in_world(kind, 3, settings,
                      [&](int rank, Engine& engine) { wrong += step_is_right(engine, rank, 3) ? 0 : 1; });
    EXPECT_EQ(wrong, 0);
  }
}

}  // namespace
}  // namespace farandole
