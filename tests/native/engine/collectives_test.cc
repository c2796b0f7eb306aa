// Every collective over every transport, with every algorithm that fits, for every type and awkward sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "collective/algorithm_table.h"
#include "reduce/kernels.h"
#include "support/sanitized.h"
#include "support/worlds.h"

namespace farandole {
namespace {

using engine::Engine;
using engine::Handle;
using engine::ReduceOp;
using reduce::Dtype;
using testing::Kind;

constexpr Dtype kDtypes[] = {Dtype::kU8,  Dtype::kI8,  Dtype::kI16, Dtype::kI32,  Dtype::kI64,
                             Dtype::kF16, Dtype::kF32, Dtype::kF64, Dtype::kBool, Dtype::kBf16};

// Takes several pieces, and the last is not full.
constexpr size_t kLargeBytes = (testing::kSanitized ? size_t{1} << 17 : size_t{1} << 20) + 1;
constexpr size_t kPieceBytes = kLargeBytes / 4;

// What sanitizers look for does not depend on the element type.
bool is_tried_large(Dtype dtype) { return !testing::kSanitized || dtype == Dtype::kBf16 || dtype == Dtype::kF32; }

// Elements are written as small integers, which every type holds exactly.
std::vector<std::byte> encode(Dtype dtype, const std::vector<int>& values) {
  std::vector<std::byte> bytes(values.size() * reduce::size_of(dtype));
  const auto write = [&]<typename T>(T) {
    for (size_t i = 0; i < values.size(); ++i) {
      const T value = static_cast<T>(values[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  };
  switch (dtype) {
    case Dtype::kU8:
    case Dtype::kBool:
      write(uint8_t{});
      break;
    case Dtype::kI8:
      write(int8_t{});
      break;
    case Dtype::kI16:
      write(int16_t{});
      break;
    case Dtype::kI32:
      write(int32_t{});
      break;
    case Dtype::kI64:
      write(int64_t{});
      break;
    case Dtype::kF32:
      write(float{});
      break;
    case Dtype::kF64:
      write(double{});
      break;
    case Dtype::kF16:
    case Dtype::kBf16: {
      std::vector<float> wide(values.begin(), values.end());
      reduce::convert(Dtype::kF32, dtype, wide.data(), bytes.data(), values.size());
    }
  }
  return bytes;
}

int value_at(int rank, size_t i, Dtype dtype) {
  const int value = static_cast<int>((i * 7 + static_cast<size_t>(rank) * 3) % 5);
  return dtype == Dtype::kBool ? value % 2 : value;
}

std::vector<int> contribution(int rank, size_t count, Dtype dtype) {
  std::vector<int> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = value_at(rank, i, dtype);
  }
  return values;
}

std::vector<int> expected_sum(int size, size_t count, Dtype dtype) {
  std::vector<int> values(count);
  for (size_t i = 0; i < count; ++i) {
    for (int rank = 0; rank < size; ++rank) {
      values[i] += value_at(rank, i, dtype);
    }
    if (dtype == Dtype::kBool) {
      values[i] = std::min(values[i], 1);
    }
  }
  return values;
}

struct Case {
  Kind kind;
  int size;
  std::string algorithm;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Kind kind : {Kind::kLoopback, Kind::kLoopbackLinks, Kind::kShm, Kind::kTcp, Kind::kTwoHosts}) {
    for (const int size : testing::kWorldSizes) {
      for (const collective::Algorithm& algorithm : collective::algorithms()) {
        if (std::string(algorithm.collective) != "allreduce") {
          continue;
        }
        const bool shared = kind == Kind::kLoopback || kind == Kind::kShm;
        const bool two_hosts = kind == Kind::kTwoHosts;
        const collective::Topology topology{size,
                                            shared      ? 1
                                            : two_hosts ? std::min(size, 2)
                                                        : size,
                                            shared      ? size
                                            : two_hosts ? std::max(1, size / 2)
                                                        : 1};
        if (algorithm.fits(topology)) {
          all.push_back({kind, size, algorithm.name});
        }
      }
    }
  }
  return all;
}

class EveryWorld : public ::testing::TestWithParam<Case> {};

TEST_P(EveryWorld, AllreduceSumsEveryTypeAndSize) {
  const Case& param = GetParam();
  engine::EngineSettings settings;
  settings.algorithm = param.algorithm;
  settings.piece_bytes = kPieceBytes;
  testing::in_world(param.kind, param.size, settings, [&](int rank, Engine& engine) {
    for (const Dtype dtype : kDtypes) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1023}, kLargeBytes}) {
        if (count > 1023 && !is_tried_large(dtype)) {
          continue;
        }
        const size_t elements = count > 1023 ? count / reduce::size_of(dtype) + 1 : count;
        const auto input = encode(dtype, contribution(rank, elements, dtype));
        std::vector<std::byte> output(input.size(), std::byte{0xee});
        const std::string name = std::string(reduce::name_of(dtype)) + std::to_string(elements);
        testing::finish(engine, engine
                                    .submit({testing::allreduce_request(name, dtype, {static_cast<int64_t>(elements)},
                                                                        input.data(), output.data())})
                                    .front());
        ASSERT_EQ(output, encode(dtype, expected_sum(param.size, elements, dtype))) << name << " on rank " << rank;
      }
    }
  });
}

TEST_P(EveryWorld, FusedRequestsDoNotMix) {
  const Case& param = GetParam();
  engine::EngineSettings settings;
  settings.algorithm = param.algorithm;
  settings.piece_bytes = 64 * 1024;
  testing::in_world(param.kind, param.size, settings, [&](int rank, Engine& engine) {
    for (int step = 0; step < 4; ++step) {
      std::vector<std::vector<std::byte>> tensors;
      std::vector<engine::Request> requests;
      for (size_t i = 0; i < 40; ++i) {
        tensors.push_back(encode(Dtype::kF32, contribution(rank, i * i * 13 % 4001, Dtype::kF32)));
      }
      for (size_t i = 0; i < tensors.size(); ++i) {
        requests.push_back(testing::allreduce_request("t" + std::to_string(i), Dtype::kF32,
                                                      {static_cast<int64_t>(tensors[i].size() / 4)}, tensors[i].data(),
                                                      tensors[i].data()));
      }
      // Every rank in an order of its own: requests match by name.
      std::rotate(requests.begin(), requests.begin() + rank * 5, requests.end());
      for (const Handle handle : engine.submit(requests)) {
        testing::finish(engine, handle);
      }
      for (size_t i = 0; i < tensors.size(); ++i) {
        ASSERT_EQ(tensors[i], encode(Dtype::kF32, expected_sum(param.size, tensors[i].size() / 4, Dtype::kF32)));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Collectives, EveryWorld, ::testing::ValuesIn(cases()), [](const auto& info) {
  return testing::name_of(info.param.kind) + "_" + std::to_string(info.param.size) + "_" + info.param.algorithm;
});

class EveryTransport : public ::testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  void run(const std::function<void(int, Engine&)>& body) {
    engine::EngineSettings settings;
    settings.piece_bytes = 64 * 1024;
    testing::in_world(std::get<0>(GetParam()), size(), settings, body);
  }
  int size() const { return std::get<1>(GetParam()); }
};

TEST_P(EveryTransport, OperationsScalesAndAverages) {
  run([this](int rank, Engine& engine) {
    const auto reduce_one = [&](const std::string& name, ReduceOp op, float value, double pre, double post) {
      engine::Request request = testing::allreduce_request(name, Dtype::kF32, {1}, &value, &value, op);
      request.signature.prescale = pre;
      request.signature.postscale = post;
      testing::finish(engine, engine.submit({request}).front());
      return value;
    };
    const auto mine = static_cast<float>(rank + 1);
    const auto n = static_cast<float>(size());
    EXPECT_EQ(reduce_one("min", ReduceOp::kMin, mine, 1, 1), 1);
    EXPECT_EQ(reduce_one("max", ReduceOp::kMax, mine, 1, 1), n);
    float factorial = 1;
    for (int i = 2; i <= size(); ++i) {
      factorial *= static_cast<float>(i);
    }
    EXPECT_EQ(reduce_one("product", ReduceOp::kProduct, mine, 1, 1), factorial);
    EXPECT_EQ(reduce_one("average", ReduceOp::kAverage, 0.75F, 1, 1), 0.75F) << "the average of equal values";
    EXPECT_EQ(reduce_one("scaled", ReduceOp::kSum, 1, 2, 3), 6 * n);

    int32_t truncated = rank == 0 ? -7 : 0;
    testing::finish(engine, engine
                                .submit({testing::allreduce_request("int average", Dtype::kI32, {1}, &truncated,
                                                                    &truncated, ReduceOp::kAverage)})
                                .front());
    EXPECT_EQ(truncated, -7 / size()) << "integer averages truncate toward zero";
  });
}

TEST_P(EveryTransport, AllgatherAcceptsUnequalParts) {
  run([this](int rank, Engine& engine) {
    // Rank 0 has nothing to give, the last one most; in the second round the parts change.
    for (const int64_t factor : {0, 1, 1, 1, 777, 30'000, 2}) {
      const auto rows_of = [&](int r) { return r * factor; };
      std::vector<int32_t> part(static_cast<size_t>(rows_of(rank) * 3));
      std::iota(part.begin(), part.end(), rank * 1'000'000);
      const auto done =
          testing::finish(engine, engine
                                      .submit({testing::request_of(engine::Kind::kAllgather, "gather", Dtype::kI32,
                                                                   {rows_of(rank), 3}, part.data())})
                                      .front());
      std::vector<int32_t> expected;
      std::vector<int64_t> rows;
      for (int r = 0; r < size(); ++r) {
        for (int64_t i = 0; i < rows_of(r) * 3; ++i) {
          expected.push_back(static_cast<int32_t>(r * 1'000'000 + i));
        }
        rows.push_back(rows_of(r));
      }
      ASSERT_EQ(done->sizes, rows);
      ASSERT_EQ(done->data.size(), expected.size() * 4);
      ASSERT_TRUE(expected.empty() || std::memcmp(done->data.data(), expected.data(), done->data.size()) == 0);
    }
  });
}

TEST_P(EveryTransport, EqualPartsAreWrittenToCallersMemory) {
  run([this](int rank, Engine& engine) {
    const auto n = static_cast<size_t>(size());
    constexpr size_t kPart = 5000;
    std::vector<float> gathered(n * kPart, -1);
    // In place: this member's part of the output is its input.
    float* const mine = gathered.data() + static_cast<size_t>(rank) * kPart;
    std::fill_n(mine, kPart, static_cast<float>(rank));
    const auto gather = [&](int64_t rows) {
      return testing::finish(engine, engine
                                         .submit({testing::request_of(engine::Kind::kAllgather, "gather", Dtype::kF32,
                                                                      {rows}, mine, gathered.data())})
                                         .front());
    };
    EXPECT_TRUE(gather(kPart)->data.empty());
    for (size_t i = 0; i < gathered.size(); ++i) {
      const size_t from = i / kPart;
      ASSERT_EQ(gathered[i], static_cast<float>(from));
    }
    std::vector<float> exchanged(n * kPart, -1);
    std::vector<float> sent(n * kPart, static_cast<float>(rank));
    const auto exchange = testing::request_of(engine::Kind::kAlltoall, "exchange", Dtype::kF32,
                                              {static_cast<int64_t>(sent.size())}, sent.data(), exchanged.data());
    EXPECT_TRUE(testing::finish(engine, engine.submit({exchange}).front())->data.empty());
    EXPECT_EQ(exchanged, gathered);
    // Unequal parts leave the memory alone.
    const auto unequal = gather(rank == 0 ? 3 : 4);
    EXPECT_EQ(unequal->data.size(), (n * 4 - 1) * sizeof(float) * static_cast<size_t>(n > 1 ? 1 : 0));
    EXPECT_EQ(exchanged, gathered);
  });
}

TEST_P(EveryTransport, BroadcastFromEveryRoot) {
  run([this](int rank, Engine& engine) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{1023}, kLargeBytes}) {
      for (int root = 0; root < size(); ++root) {
        std::vector<int32_t> values(count, rank * 10);
        engine::Request request = testing::request_of(engine::Kind::kBroadcast, "b" + std::to_string(root), Dtype::kI32,
                                                      {static_cast<int64_t>(count)}, values.data(), values.data());
        request.signature.root = root;
        testing::finish(engine, engine.submit({request}).front());
        ASSERT_EQ(values, std::vector<int32_t>(count, root * 10));
      }
    }
  });
}

TEST_P(EveryTransport, NoRankPassesBarrierBeforeAllHaveReachedIt) {
  std::atomic<int> arrived{0};
  run([&](int, Engine& engine) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      testing::finish(engine, engine.submit({testing::request_of(engine::Kind::kBarrier, "barrier")}).front());
      ASSERT_GE(arrived, round * size());
    }
  });
}

TEST_P(EveryTransport, BitsDoNotDependOnFusionOrOrder) {
  // The same tensor alone, and fused with others in several orders, gives the same bits.
  run([](int rank, Engine& engine) {
    std::vector<float> values(5000);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = std::sin(static_cast<float>(i) * 0.37F + static_cast<float>(rank)) * std::pow(10.0F, i % 7);
    }
    const std::vector<float> alone = testing::allreduce(engine, "x", values);
    for (size_t step = 0; step < 5; ++step) {
      std::vector<float> x = values;
      std::vector<std::vector<float>> others(step, std::vector<float>(step * 1000 + 3, 1.0F));
      std::vector<engine::Request> requests;
      for (size_t i = 0; i < others.size(); ++i) {
        requests.push_back(testing::allreduce_request("o" + std::to_string(i), Dtype::kF32,
                                                      {static_cast<int64_t>(others[i].size())}, others[i].data(),
                                                      others[i].data()));
      }
      requests.insert(requests.begin() + static_cast<ptrdiff_t>(step / 2),
                      testing::allreduce_request("x", Dtype::kF32, {5000}, x.data(), x.data()));
      for (const Handle handle : engine.submit(requests)) {
        testing::finish(engine, handle);
      }
      ASSERT_EQ(std::memcmp(x.data(), alone.data(), x.size() * 4), 0) << "with " << step << " others";
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Collectives, EveryTransport,
                         ::testing::Combine(::testing::Values(Kind::kLoopback, Kind::kLoopbackLinks, Kind::kShm,
                                                              Kind::kTcp, Kind::kTwoHosts, Kind::kTree),
                                            ::testing::ValuesIn(testing::kWorldSizes)),
                         [](const auto& info) {
                           return testing::name_of(std::get<0>(info.param)) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace farandole
