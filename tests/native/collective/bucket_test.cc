#include "collective/bucket.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace farandole::collective {
namespace {

using reduce::Dtype;

TEST(Slices, CoverAllElementsOnceAndEndAtGrains) {
  for (const size_t count : {0, 1, 15, 16, 17, 100, 1023, 4096}) {
    for (const size_t parts : {1, 2, 3, 7, 8, 64}) {
      for (const size_t grain : {1, 16}) {
        size_t at = 0;
        for (size_t i = 0; i < parts; ++i) {
          const Slice slice = slice_of(count, parts, i, grain);
          ASSERT_EQ(slice.from, at);
          ASSERT_LE(slice.from, slice.to);
          ASSERT_TRUE(slice.to % grain == 0 || slice.to == count);
          at = slice.to;
        }
        ASSERT_EQ(at, count);
      }
    }
  }
}

// Tensors of odd sizes, empty ones among them.
struct Tensors {
  explicit Tensors(Dtype dtype) {
    job.dtype = dtype;
    for (const size_t count : {5, 0, 1, 300, 16, 0, 77}) {
      inputs.emplace_back(count);
      outputs.emplace_back(count, -1.0F);
      std::iota(inputs.back().begin(), inputs.back().end(), static_cast<float>(inputs.size() * 1000));
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      job.pieces.push_back({inputs[i].data(), outputs[i].data(), inputs[i].size()});
    }
  }
  AllreduceJob job;
  std::vector<std::vector<float>> inputs;
  std::vector<std::vector<float>> outputs;
};

TEST(Bucket, CopiesInAndOutInAnyChunks) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    Tensors tensors(Dtype::kF32);
    const Bucket bucket(tensors.job);
    for (size_t from = 0; from < bucket.end();) {
      const size_t to = std::min(bucket.end(), from + std::uniform_int_distribution<size_t>(1, 90)(random));
      std::vector<std::byte> memory((to - from) * 4);
      bucket.copy_in(from, to, Dtype::kF32, memory.data());
      bucket.copy_out(from, to, Dtype::kF32, memory.data(), false);
      from = to;
    }
    ASSERT_EQ(tensors.outputs, tensors.inputs);
  }
}

TEST(Bucket, TensorsBeginAtCacheLinesAndGapsAreUntouched) {
  Tensors tensors(Dtype::kF32);
  const Bucket bucket(tensors.job);
  size_t elements = 0;
  bucket.for_each_part(0, bucket.end(), [&](size_t, size_t position, size_t offset, size_t length) {
    EXPECT_EQ(position % 16, 0U);
    EXPECT_EQ(offset, 0U);
    elements += length;
  });
  EXPECT_EQ(elements, 5U + 1 + 300 + 16 + 77);
  std::vector<float> memory(bucket.end(), 12345.0F);
  bucket.copy_in(0, bucket.end(), Dtype::kF32, reinterpret_cast<std::byte*>(memory.data()));
  EXPECT_EQ(memory[5], 12345.0F) << "the gap behind the first tensor";
}

TEST(Bucket, ScalesWhenCopyingInAndOut) {
  Tensors tensors(Dtype::kF32);
  tensors.job.prescale.factor = 2;
  tensors.job.postscale = {3, 4};
  const Bucket bucket(tensors.job);
  std::vector<float> memory(bucket.end());
  bucket.copy_in(0, bucket.end(), Dtype::kF32, reinterpret_cast<std::byte*>(memory.data()));
  EXPECT_EQ(memory[1], 2 * tensors.inputs[0][1]);
  bucket.copy_out(0, bucket.end(), Dtype::kF32, reinterpret_cast<const std::byte*>(memory.data()), true);
  EXPECT_EQ(tensors.outputs[0][1], 2 * tensors.inputs[0][1] * 3 / 4);
}

TEST(Bucket, SixteenBitFloatsAreHeldAsFloat32) {
  std::vector<uint16_t> half = {0x3c00, 0xc000, 0x7bff};  // 1, -2, 65504
  AllreduceJob job;
  job.dtype = Dtype::kF16;
  job.pieces.push_back({half.data(), half.data(), half.size()});
  const Bucket bucket(job);
  std::vector<float> memory(bucket.end());
  bucket.copy_in(0, bucket.end(), Dtype::kF32, reinterpret_cast<std::byte*>(memory.data()));
  EXPECT_EQ(memory, (std::vector<float>{1, -2, 65504}));
  memory[0] = 5;
  bucket.copy_out(0, bucket.end(), Dtype::kF32, reinterpret_cast<const std::byte*>(memory.data()), true);
  EXPECT_EQ(half[0], 0x4500);
}

TEST(Bucket, DetectsTensorsThatLieInTheArena) {
  alignas(64) std::array<float, 64> memory{};
  const transport::ArenaView arena{reinterpret_cast<std::byte*>(memory.data()), sizeof memory};
  AllreduceJob job;
  job.pieces = {{&memory[16], &memory[16], 10}, {&memory[32], &memory[32], 20}};
  EXPECT_EQ(Bucket(job).offset_in(arena), std::optional<size_t>(64));
  job.prescale.factor = 2;
  EXPECT_EQ(Bucket(job).offset_in(arena), std::nullopt) << "a prescale needs a copy";
  job.prescale.factor = 1;
  job.pieces[1] = {&memory[33], &memory[33], 20};
  EXPECT_EQ(Bucket(job).offset_in(arena), std::nullopt) << "another layout";
  job.pieces[1] = {&memory[32], &memory[40], 20};
  EXPECT_EQ(Bucket(job).offset_in(arena), std::nullopt) << "out of place";
  job.pieces[1] = {&memory[32], &memory[32], 40};
  EXPECT_EQ(Bucket(job).offset_in(arena), std::nullopt) << "reaches beyond the arena";
}

}  // namespace
}  // namespace farandole::collective
