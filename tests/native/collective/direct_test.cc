// The elements that an allreduce copies among workers that share memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "collective/allreduce/allreduce.h"
#include "collective/link_exchange.h"
#include "collective/staging.h"
#include "transport/loopback/loopback.h"

namespace farandole::collective {
namespace {

constexpr size_t kPieceBytes = 4096;
constexpr size_t kCount = kPieceBytes / sizeof(float);
constexpr float kUntouched = -1;

// Returns the content of member 0's window, in a world of two, after it has staged a tensor of 0, 1, 2 and so on that
// lies in ordinary memory.
std::vector<float> staged(const Knobs& knobs) {
  transport::LoopbackSettings settings;
  settings.size = 2;
  settings.generation = 1;
  transport::LoopbackWorld world(settings);
  const auto mesh = world.mesh(0);
  transport::FrameMultiplexer frames(*mesh, {});
  ShmSequence sequence(frames);
  sequence.begin(1);
  const std::span<float> memory(static_cast<float*>(world.arena(0).allocate(transport::kWindows * kPieceBytes)),
                                transport::kWindows * kCount);
  std::ranges::fill(memory, kUntouched);
  Staging staging(sequence, reinterpret_cast<std::byte*>(memory.data()), kPieceBytes);
  LinkExchanges exchanges(frames, staging);
  const Group group{0, {0, 1}, 0};
  Context context{frames, sequence, staging, group, knobs, exchanges};

  std::vector<float> values(kCount);
  std::iota(values.begin(), values.end(), 0.0F);
  AllreduceJob job;
  job.pieces.push_back({values.data(), values.data(), values.size()});
  stage_direct(context, job);

  std::vector<float> window;
  for (size_t first = 0; first < memory.size(); first += kCount) {
    const std::span<float> each = memory.subspan(first, kCount);
    if (std::ranges::any_of(each, [](float value) { return value != kUntouched; })) {
      EXPECT_TRUE(window.empty()) << "one window is enough";
      window.assign(each.begin(), each.end());
    }
  }
  world.arena(0).release(memory.data());
  return window;
}

TEST(Direct, CopiesOnlyElementsThatOthersReduce) {
  Knobs knobs;
  knobs.small_bytes = 0;
  constexpr size_t kHalf = kCount / 2;
  std::vector<float> expected(kCount, kUntouched);
  std::iota(expected.begin() + kHalf, expected.end(), static_cast<float>(kHalf));
  EXPECT_EQ(staged(knobs), expected);
}

TEST(Direct, FewerBytesAreSmallForManyMembers) {
  Knobs knobs;
  knobs.small_bytes = 16384;
  EXPECT_EQ(small_bytes(knobs, 2), 16384U);
  EXPECT_EQ(small_bytes(knobs, kFewMembers), 16384U);
  EXPECT_EQ(small_bytes(knobs, 4 * kFewMembers), 4096U);
  knobs.small_bytes = 100;
  EXPECT_EQ(small_bytes(knobs, 3), 100U);
}

TEST(Direct, ChunksDoNotShrinkWithManyMembers) {
  Knobs knobs;
  knobs.chunk_bytes = uint64_t{1} << 20;
  EXPECT_EQ(chunk_bytes(knobs, 2), uint64_t{512} << 10);
  EXPECT_EQ(chunk_bytes(knobs, 4), uint64_t{256} << 10);
  EXPECT_EQ(chunk_bytes(knobs, 64), uint64_t{256} << 10);
  knobs.chunk_bytes = 0;
  EXPECT_EQ(chunk_bytes(knobs, 64), kSmallestChunk);
}

TEST(Direct, OneMemberReducesForMoreMembersThanEachWouldForItself) {
  Knobs knobs;
  knobs.small_bytes = 16384;
  EXPECT_EQ(small_staged_bytes(knobs, 2), 16384U);
  EXPECT_EQ(small_staged_bytes(knobs, kFewMembersIfStaged), 16384U);
  EXPECT_EQ(small_staged_bytes(knobs, 2 * kFewMembersIfStaged), 8192U);
  EXPECT_GT(small_staged_bytes(knobs, kFewMembersIfStaged), small_bytes(knobs, kFewMembersIfStaged));
}

TEST(Direct, CopiesAllOfASmallTensor) {
  Knobs knobs;
  knobs.small_bytes = kPieceBytes;
  std::vector<float> expected(kCount);
  std::iota(expected.begin(), expected.end(), 0.0F);
  EXPECT_EQ(staged(knobs), expected);
}

}  // namespace
}  // namespace farandole::collective
