#include "engine/tuner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <set>
#include <string>

namespace farandole::engine {
namespace {

using collective::Knobs;

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr collective::Topology kOneHost{4, 1, 4};
constexpr collective::Topology kTwoHosts{4, 2, 2};
constexpr uint64_t kStepBytes = 100'000'000;

std::vector<Dial> dials(const collective::Topology& topology = kOneHost) { return dials_for(topology, 4 * kMiB, {}); }

// How fast a world is with these knobs, in bytes per second.
using Surface = std::function<double(const Knobs&)>;

// Falls by `slope` of itself for every doubling away from `best`.
double peak(uint64_t value, uint64_t best, double slope) {
  const double octaves = std::abs(std::log2(static_cast<double>(value)) - std::log2(static_cast<double>(best)));
  return 1 - slope * octaves;
}

// Runs steps until the tuner ends; returns how many there were.
int train(Tuner& tuner, const Surface& speed, double noise = 0, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 1);
  int steps = 0;
  for (; !tuner.done() && steps < 100'000; ++steps) {
    const double rate = speed(tuner.knobs()) * std::exp(noise * normal(random));
    tuner.observe(kStepBytes, static_cast<int64_t>(kStepBytes / rate * 1e9));
  }
  EXPECT_TRUE(tuner.done());
  return steps;
}

// Defaults that leave something to gain.
Knobs far_off() {
  Knobs knobs;
  knobs.chunk_bytes = 4 * kMiB;
  return knobs;
}

double two_peaks(const Knobs& knobs) {
  return 1e9 * peak(knobs.fusion_threshold, 16 * kMiB, 0.1) * peak(knobs.chunk_bytes, 512 * kKiB, 0.1);
}

TEST(Tuner, FindsBestValuesAndReportsGain) {
  Tuner tuner({}, far_off(), std::nullopt, dials());
  const int steps = train(tuner, two_peaks);
  EXPECT_EQ(tuner.knobs().fusion_threshold, 16 * kMiB);
  EXPECT_EQ(tuner.knobs().chunk_bytes, 512 * kKiB);
  EXPECT_EQ(tuner.knobs().small_bytes, far_off().small_bytes) << "it makes no difference";
  EXPECT_TRUE(tuner.found());
  EXPECT_NEAR(tuner.gain(), 1 / two_peaks(far_off()) * 1e9, 0.01);
  EXPECT_EQ(tuner.summary(), "autotuning ended after " + std::to_string(tuner.samples().size()) +
                                 " samples: 2.04 times the speed of the defaults, with fusion_threshold 16 MiB, "
                                 "chunk_bytes 512 KiB");
  EXPECT_LT(tuner.samples().size(), 40U);
  EXPECT_LT(steps, 450);
}

TEST(Tuner, MakesSameDecisionsForSameSpeeds) {
  Tuner one({}, far_off(), std::nullopt, dials());
  Tuner two({}, far_off(), std::nullopt, dials());
  train(one, two_peaks, 0.1, 7);
  train(two, two_peaks, 0.1, 7);
  ASSERT_EQ(one.samples().size(), two.samples().size());
  for (size_t i = 0; i < one.samples().size(); ++i) {
    EXPECT_EQ(one.samples()[i].knobs, two.samples()[i].knobs);
  }
}

TEST(Tuner, WithNoiseResultIsNotWorseThanDefaults) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    Tuner tuner({}, far_off(), std::nullopt, dials());
    train(tuner, two_peaks, 0.2, seed);
    EXPECT_GT(two_peaks(tuner.knobs()), 1.5 * two_peaks(far_off())) << "seed " << seed;
  }
}

TEST(Tuner, WithoutDifferencesDefaultsStayExceptByChance) {
  int stayed = 0;
  for (uint32_t seed = 0; seed < 50; ++seed) {
    Tuner tuner({}, far_off(), std::nullopt, dials());
    train(tuner, [](const Knobs&) { return 1e9; }, 0.05, seed);
    EXPECT_LT(tuner.gain(), 1.1);
    stayed += tuner.found() ? 0 : 1;
  }
  EXPECT_GT(stayed, 25);
}

TEST(Tuner, WithoutDifferencesAndNoiseDefaultsStay) {
  Tuner tuner({}, far_off(), std::nullopt, dials());
  train(tuner, [](const Knobs&) { return 1e9; });
  EXPECT_EQ(tuner.knobs(), far_off());
  EXPECT_FALSE(tuner.found());
  EXPECT_EQ(tuner.gain(), 1);
  EXPECT_NE(tuner.summary().find("nothing was faster than the defaults"), std::string::npos);
}

TEST(Tuner, FastWarmUpIsIgnored) {
  // The first three samples are ten times as fast, whatever the knobs.
  Tuner tuner({}, far_off(), std::nullopt, dials());
  int steps = 0;
  train(tuner, [&](const Knobs& knobs) { return two_peaks(knobs) * (steps++ < 30 ? 10 : 1); });
  EXPECT_EQ(tuner.knobs().fusion_threshold, 16 * kMiB);
  EXPECT_NEAR(tuner.gain(), 2.04, 0.01);
}

TEST(Tuner, OutliersDoNotMisleadIt) {
  // Every fourth step waits for something else.
  Tuner tuner({}, far_off(), std::nullopt, dials());
  int steps = 0;
  train(tuner, [&](const Knobs& knobs) { return two_peaks(knobs) * (steps++ % 4 == 0 ? 0.01 : 1); });
  EXPECT_EQ(tuner.knobs().fusion_threshold, 16 * kMiB);
  EXPECT_EQ(tuner.knobs().chunk_bytes, 512 * kKiB);
}

TEST(Tuner, ChangingLoadIsNotTakenForGain) {
  // The machine gets faster all the time: what comes later looks better than it is.
  Tuner tuner({}, far_off(), std::nullopt, dials());
  double drift = 1;
  train(tuner, [&](const Knobs&) { return 1e9 * (drift *= 1.0002); });
  EXPECT_LT(tuner.gain(), 1.02);
}

TEST(Tuner, KeptValuesAreVerifiedOnly) {
  Knobs kept;
  kept.fusion_threshold = 16 * kMiB;
  kept.chunk_bytes = 512 * kKiB;
  Tuner tuner({}, far_off(), kept, dials());
  EXPECT_EQ(tuner.knobs(), kept) << "they are used from the start";
  train(tuner, two_peaks);
  EXPECT_EQ(tuner.knobs(), kept);
  EXPECT_EQ(tuner.samples().size(), 9U);
  EXPECT_TRUE(tuner.found());
}

TEST(Tuner, KeptValuesThatNoLongerHelpStartSearch) {
  Knobs kept;
  kept.fusion_threshold = kMiB;
  kept.chunk_bytes = 64 * kKiB;
  Tuner tuner({}, far_off(), kept, dials());
  train(tuner, [](const Knobs& knobs) { return 1e9 * peak(knobs.fusion_threshold, 64 * kMiB, 0.1); });
  EXPECT_EQ(tuner.knobs().fusion_threshold, 64 * kMiB);
  EXPECT_EQ(tuner.knobs().chunk_bytes, far_off().chunk_bytes);
}

TEST(Tuner, KeepsToTheNumberOfSamples) {
  Tuner tuner({.warmup_samples = 0, .steps_per_sample = 1, .max_samples = 3}, far_off(), std::nullopt, dials());
  EXPECT_EQ(std::string(tuner.phase()), "search");
  train(tuner, two_peaks);
  EXPECT_LE(tuner.samples().size(), 3U + 6U);
}

TEST(Tuner, ShortStepsAreManyToASample) {
  Tuner tuner({.warmup_samples = 0, .steps_per_sample = 2, .max_samples = 1}, far_off(), std::nullopt, dials());
  int steps = 0;
  while (tuner.samples().empty()) {
    tuner.observe(4000, 100'000);
    ++steps;
  }
  EXPECT_EQ(steps, 200);
}

TEST(Tuner, AWorldOfOneHasNothingToTune) {
  Tuner tuner({}, far_off(), std::nullopt, dials_for({1, 1, 1}, 4 * kMiB, {}));
  EXPECT_TRUE(tuner.done());
  EXPECT_FALSE(tuner.observe(1, 1));
  EXPECT_NE(tuner.summary().find("nothing to try"), std::string::npos);
}

std::set<std::string> names(const std::vector<Dial>& all) {
  std::set<std::string> result;
  for (const Dial& dial : all) {
    result.insert(dial.knob.name);
    EXPECT_TRUE(std::ranges::is_sorted(dial.values));
  }
  return result;
}

TEST(Dials, DependOnTopology) {
  EXPECT_EQ(names(dials(kOneHost)), (std::set<std::string>{"fusion_threshold", "chunk_bytes", "small_bytes"}));
  EXPECT_EQ(names(dials(kTwoHosts)),
            (std::set<std::string>{"fusion_threshold", "chunk_bytes", "ring_bytes", "link_chunk_bytes"}));
}

TEST(Dials, ExcludeKnobsThatUserHasSet) {
  EXPECT_FALSE(names(dials_for(kOneHost, 4 * kMiB, {"chunk_bytes"})).contains("chunk_bytes"));
}

TEST(Dials, StayWithinStaging) {
  for (const Dial& dial : dials_for(kOneHost, 128 * kKiB, {"fusion_threshold", "chunk_bytes"})) {
    EXPECT_LE(dial.values.back(), 128 * kKiB);
  }
}

TEST(StepMeter, AStepEndsWhereANameComesAgain) {
  StepMeter meter;
  EXPECT_FALSE(meter.add(1, 10, 100, 200));
  EXPECT_FALSE(meter.add(2, 20, 50, 150));
  const auto step = meter.add(1, 10, 1000, 1100);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->bytes, 30U);
  EXPECT_EQ(step->ns, 150);
  const auto next = meter.add(1, 10, 2000, 2100);
  ASSERT_TRUE(next) << "a step of one request";
  EXPECT_EQ(next->bytes, 10U);
  EXPECT_EQ(next->ns, 100);
}

TEST(StepMeter, NamesThatNeverComeAgainEndAStepToo) {
  StepMeter meter;
  uint32_t name = 0;
  while (!meter.add(name, 1, name, name + 1)) {
    ASSERT_LT(++name, 10'000U);
  }
}

}  // namespace
}  // namespace farandole::engine
