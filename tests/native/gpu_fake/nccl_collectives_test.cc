// What the collectives of the fake NCCL compute, in worlds of threads.
#include <cmath>
#include <cstring>
#include <numeric>

#include "gpu_fake/worlds.h"

namespace nccl_fake {
namespace {

struct World {
  int size;
  const char* time;
};

class Collectives : public ::testing::TestWithParam<World> {
 protected:
  void SetUp() override { gpu_fake::fake_gpu_time(GetParam().time, 7, 500); }
  void TearDown() override { gpu_fake::fake_gpu_time("eager", 1, 0); }
  static void in_each(const std::function<void(Rank&)>& body) { in_world(GetParam().size, body); }
};

INSTANTIATE_TEST_SUITE_P(Worlds, Collectives,
                         ::testing::Values(World{1, "eager"}, World{2, "eager"}, World{2, "lazy"}, World{3, "random"},
                                           World{4, "random"}),
                         [](const auto& tested) {
                           return std::string(tested.param.time) + std::to_string(tested.param.size);
                         });

// So many that reductions begin with each of the ranks.
constexpr size_t kCount = 1500;

std::vector<float> values_of(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(static_cast<int>(i % 17) + 100 * rank);
  }
  return values;
}

std::vector<float> sum_of_all(int size, size_t count) {
  std::vector<float> sum(count, 0);
  for (int rank = 0; rank < size; ++rank) {
    const auto values = values_of(rank, count);
    std::transform(sum.begin(), sum.end(), values.begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

TEST_P(Collectives, AllReduceAddsInPlaceAndOutOfPlace) {
  in_each([](Rank& world) {
    float* const data = world.put(values_of(world.rank, kCount));
    float* const other = world.put(std::vector<float>(kCount));
    world.ok(ncclAllReduce(data, other, kCount, kFloat32, kSum, world.comm, world.stream));
    world.ok(ncclAllReduce(data, data, kCount, kFloat32, kSum, world.comm, world.stream));
    const auto expected = sum_of_all(world.size, kCount);
    EXPECT_EQ(world.read(other, kCount), expected);
    EXPECT_EQ(world.read(data, kCount), expected);
  });
}

TEST_P(Collectives, InputIsReadInTheStreamsOrder) {
  in_each([](Rank& world) {
    float* const data = world.put(std::vector<float>(4, -1));
    float* const source = world.put(std::vector<float>(4, 2));
    const auto to = reinterpret_cast<gpu_fake::Address>(data);
    ASSERT_EQ(gpu_fake::cuMemcpyDtoDAsync_v2(to, reinterpret_cast<gpu_fake::Address>(source), 16, world.stream),
              gpu_fake::kSuccess);
    world.ok(ncclAllReduce(data, data, 4, kFloat32, kSum, world.comm, world.stream));
    ASSERT_EQ(gpu_fake::cuMemcpyDtoDAsync_v2(reinterpret_cast<gpu_fake::Address>(source), to, 16, world.stream),
              gpu_fake::kSuccess);
    EXPECT_EQ(world.read(source, 4), std::vector<float>(4, static_cast<float>(2 * world.size)));
  });
}

TEST_P(Collectives, GatherScatterBroadcastAndReduce) {
  in_each([](Rank& world) {
    const auto size = static_cast<size_t>(world.size);
    const auto mine = static_cast<size_t>(world.rank);
    const int last = world.size - 1;
    std::vector<float> all;
    for (int rank = 0; rank < world.size; ++rank) {
      const auto values = values_of(rank, 5);
      all.insert(all.end(), values.begin(), values.end());
    }
    float* const part = world.put(values_of(world.rank, 5));
    float* const gathered = world.put(std::vector<float>(5 * size));
    world.ok(ncclAllGather(part, gathered, 5, kFloat32, world.comm, world.stream));
    EXPECT_EQ(world.read(gathered, 5 * size), all);

    float* const whole = world.put(values_of(world.rank, 5 * size));
    world.ok(ncclReduceScatter(whole, whole + 5 * mine, 5, kFloat32, kSum, world.comm, world.stream));
    const auto sum = sum_of_all(world.size, 5 * size);
    EXPECT_EQ(world.read(whole + 5 * mine, 5), std::vector<float>(sum.begin() + static_cast<ptrdiff_t>(5 * mine),
                                                                  sum.begin() + static_cast<ptrdiff_t>(5 * mine + 5)));

    float* const sent = world.put(values_of(world.rank, 5));
    world.ok(ncclBcast(sent, 5, kFloat32, last, world.comm, world.stream));
    EXPECT_EQ(world.read(sent, 5), values_of(last, 5));

    float* const reduced = world.put(std::vector<float>(5, -1));
    world.ok(ncclReduce(part, reduced, 5, kFloat32, kSum, last, world.comm, world.stream));
    EXPECT_EQ(world.read(reduced, 5), world.rank == last ? sum_of_all(world.size, 5) : std::vector<float>(5, -1));
  });
}

TEST_P(Collectives, GroupOfSendsAndReceivesGoesAround) {
  in_each([](Rank& world) {
    const int next = (world.rank + 1) % world.size;
    const int previous = (world.rank + world.size - 1) % world.size;
    float* const mine = world.put(values_of(world.rank, 9));
    float* const theirs = world.put(std::vector<float>(9));
    float* const sum = world.put(std::vector<float>(1, 1));
    const uint64_t groups = fake_nccl_count("groups");
    world.ok(ncclGroupStart());
    world.ok(ncclSend(mine, 9, kFloat32, next, world.comm, world.stream));
    world.ok(ncclRecv(theirs, 9, kFloat32, previous, world.comm, world.stream));
    world.ok(ncclAllReduce(sum, sum, 1, kFloat32, kSum, world.comm, world.stream));
    world.ok(ncclGroupEnd());
    EXPECT_GT(fake_nccl_count("groups"), groups);
    EXPECT_EQ(world.read(theirs, 9), values_of(previous, 9));
    EXPECT_EQ(world.read(sum, 1)[0], static_cast<float>(world.size));
  });
}

TEST_P(Collectives, InputIsMultipliedBeforeItIsAdded) {
  in_each([](Rank& world) {
    const auto factor = static_cast<float>(world.rank + 1);
    float* const on_device = world.put(std::vector<float>{factor * 10});
    float* const data = world.put(std::vector<float>(3, 2));
    int by_value = 0;
    int by_memory = 0;
    float value = factor;
    world.ok(ncclRedOpCreatePreMulSum(&by_value, &value, kFloat32, kScalarHost, world.comm));
    value = 0;
    world.ok(ncclRedOpCreatePreMulSum(&by_memory, on_device, kFloat32, kScalarDevice, world.comm));
    float* const second = world.put(std::vector<float>(3, 2));
    world.ok(ncclAllReduce(data, data, 3, kFloat32, by_value, world.comm, world.stream));
    world.ok(ncclAllReduce(second, second, 3, kFloat32, by_memory, world.comm, world.stream));
    world.ok(ncclRedOpDestroy(by_value, world.comm));
    EXPECT_EQ(ncclAllReduce(data, data, 3, kFloat32, by_value, world.comm, world.stream), kInvalidArgument);
    const auto factors = static_cast<float>(world.size * (world.size + 1)) / 2;
    EXPECT_EQ(world.read(data, 3), std::vector<float>(3, 2 * factors));
    EXPECT_EQ(world.read(second, 3), std::vector<float>(3, 20 * factors));
  });
}

// --- types and reductions ---

uint16_t to_float16(double value) {
  if (value == 0) {
    return 0;
  }
  const int exponent = std::ilogb(std::fabs(value));
  const auto mantissa = static_cast<int>((std::ldexp(std::fabs(value), -exponent) - 1) * 1024);
  return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) + ((exponent + 15) << 10) + mantissa);
}

uint16_t to_bfloat16(double value) {
  const auto single = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &single, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

// All results are small, so that each type holds them without rounding.
template <typename T>
void reduces(Dtype dtype, const std::function<T(double)>& encode) {
  in_world(3, [&](Rank& world) {
    const std::vector<double> all[3] = {{1, 4, 2}, {3, 2, 2}, {2, 3, 2}};
    const std::vector<double> expected[5] = {{6, 9, 6}, {6, 24, 8}, {3, 4, 2}, {1, 2, 2}, {2, 3, 2}};
    const auto encoded = [&](const std::vector<double>& values) {
      std::vector<T> result;
      std::transform(values.begin(), values.end(), std::back_inserter(result), encode);
      return result;
    };
    T* const input = world.put(encoded(all[world.rank]));
    for (const int op : {kSum, kProd, kMax, kMin, kAvg}) {
      T* const output = world.put(std::vector<T>(3));
      world.ok(ncclAllReduce(input, output, 3, dtype, op, world.comm, world.stream));
      const auto found = world.read(output, 3);
      if (op != kAvg || std::is_integral_v<T>) {
        EXPECT_EQ(found, encoded(expected[op])) << "type " << dtype << ", operation " << op;
      }
    }
  });
}

TEST(Reductions, AllTypesKnowAllOperations) {
  gpu_fake::fake_gpu_time("eager", 1, 0);
  reduces<int8_t>(kInt8, [](double value) { return static_cast<int8_t>(value); });
  reduces<uint8_t>(kUint8, [](double value) { return static_cast<uint8_t>(value); });
  reduces<int32_t>(kInt32, [](double value) { return static_cast<int32_t>(value); });
  reduces<uint32_t>(kUint32, [](double value) { return static_cast<uint32_t>(value); });
  reduces<int64_t>(kInt64, [](double value) { return static_cast<int64_t>(value); });
  reduces<uint64_t>(kUint64, [](double value) { return static_cast<uint64_t>(value); });
  reduces<float>(kFloat32, [](double value) { return static_cast<float>(value); });
  reduces<double>(kFloat64, [](double value) { return value; });
}

TEST(Reductions, HalvesAreRoundedAfterEachStep) {
  gpu_fake::fake_gpu_time("eager", 1, 0);
  in_world(3, [](Rank& world) {
    // 2048 + 1 + 1: the spacing is 2 there, and ties go to even. Every order gives 2048 or 2050, as real NCCL does.
    const double values[3] = {2048, 1, 1};
    uint16_t* const half = world.put(std::vector<uint16_t>{to_float16(values[world.rank]), to_float16(3.5)});
    world.ok(ncclAllReduce(half, half, 2, kFloat16, kSum, world.comm, world.stream));
    EXPECT_EQ(world.read(half, 2), (std::vector<uint16_t>{to_float16(2048), to_float16(10.5)}));
    const double brains[3] = {256, 1, 1};
    uint16_t* const brain = world.put(std::vector<uint16_t>{to_bfloat16(brains[world.rank]), to_bfloat16(-1.5)});
    world.ok(ncclAllReduce(brain, brain, 2, kBfloat16, kSum, world.comm, world.stream));
    EXPECT_EQ(world.read(brain, 2), (std::vector<uint16_t>{to_bfloat16(256), to_bfloat16(-4.5)}));
  });
}

TEST(Reductions, SmallAndLargeHalvesKeepTheirValue) {
  gpu_fake::fake_gpu_time("eager", 1, 0);
  in_world(1, [](Rank& world) {
    // Zero, the smallest and the largest subnormal number, the smallest normal one, the largest, infinity, and
    // negatives.
    const std::vector<uint16_t> bits = {0, 1, 0x3FF, 0x400, 0x7BFF, 0x7C00, 0x8000, 0x8001, 0xFC00};
    uint16_t* const half = world.put(bits);
    world.ok(ncclAllReduce(half, half, bits.size(), kFloat16, kMax, world.comm, world.stream));
    EXPECT_EQ(world.read(half, bits.size()), bits);
    int doubled = 0;
    uint16_t two = to_float16(2);
    world.ok(ncclRedOpCreatePreMulSum(&doubled, &two, kFloat16, kScalarHost, world.comm));
    world.ok(ncclAllReduce(half, half, bits.size(), kFloat16, doubled, world.comm, world.stream));
    EXPECT_EQ(world.read(half, bits.size()),
              (std::vector<uint16_t>{0, 2, 0x7FE, 0x800, 0x7C00, 0x7C00, 0x8000, 0x8002, 0xFC00}));
  });
}

TEST(Reductions, AverageOfFloatsMultipliesBeforeItAdds) {
  gpu_fake::fake_gpu_time("eager", 1, 0);
  in_world(3, [](Rank& world) {
    float* const data = world.put(std::vector<float>{1});
    world.ok(ncclAllReduce(data, data, 1, kFloat32, kAvg, world.comm, world.stream));
    const float third = 1.0F / 3.0F;
    EXPECT_EQ(world.read(data, 1)[0], third + third + third);
  });
}

}  // namespace
}  // namespace nccl_fake
