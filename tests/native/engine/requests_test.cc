// Checks of requests, names in flight, and the engine's reports of its work.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>

#include "support/worlds.h"

namespace farandole {
namespace {

using base::Code;
using base::Error;
using engine::Engine;
using engine::Event;
using engine::Handle;
using engine::Kind;
using engine::Phase;
using engine::ReduceOp;
using engine::Request;
using reduce::Dtype;
using testing::allreduce_request;
using testing::finish;
using testing::in_world;
using World = testing::Kind;

// Returns the error with which this submission is refused, or an empty text.
std::string refusal(Engine& engine, const Request& request) {
  try {
    engine.submit({request});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return "";
}

void expect_refusal(Engine& engine, const Request& request, const std::string& phrase) {
  const std::string why = refusal(engine, request);
  EXPECT_NE(why.find(phrase), std::string::npos) << "'" << why << "' lacks '" << phrase << "'";
}

std::string mismatch(Engine& engine, const Request& request) {
  try {
    finish(engine, engine.submit({request}).front());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kMismatch);
    return error.what();
  }
  return "";
}

float g_memory[64];

Request request_of(Kind kind, std::vector<int64_t> shape, Dtype dtype = Dtype::kF32) {
  return testing::request_of(kind, "x", dtype, std::move(shape), g_memory, g_memory + 32);
}

Request transfer(const std::string& name, int root, int peer, int64_t count, const void* input, void* output) {
  Request request = testing::request_of(Kind::kTransfer, name, Dtype::kF32, {count}, input, output);
  request.signature.root = root;
  request.signature.peer = peer;
  return request;
}

TEST(Requests, EachKindIsChecked) {
  in_world(World::kLoopback, 3, {}, [](int rank, Engine& engine) {
    Request request = request_of(Kind::kAlltoall, {});
    expect_refusal(engine, request, "at least one dimension");
    request = request_of(Kind::kAlltoall, {7, 2});
    expect_refusal(engine, request, "splits not provided, but first dimension");
    request.splits = {1, 2};
    expect_refusal(engine, request, "Number of entries in splits does not equal number of workers");
    request.splits = {4, 2, 2};
    expect_refusal(engine, request, "Sum of splits entries is greater than the first dimension of tensor");
    request.splits = {INT64_MAX, 1, INT64_MAX};
    expect_refusal(engine, request, "Sum of splits entries is greater than the first dimension of tensor");
    request.splits = {1, -1, 2};
    expect_refusal(engine, request, "splits cannot be negative");

    request = request_of(Kind::kReducescatter, {});
    expect_refusal(engine, request, "Reducescatter does not support scalar inputs");
    request = request_of(Kind::kReducescatter, {4});
    request.signature.op = ReduceOp::kAdasum;
    expect_refusal(engine, request, "reducescatter does not support Adasum");
    request = request_of(Kind::kReducescatter, {4});
    request.output = nullptr;
    expect_refusal(engine, request, "no memory");

    request = request_of(Kind::kReduce, {4});
    request.signature.op = ReduceOp::kAdasum;
    expect_refusal(engine, request, "reduce does not support Adasum");
    request = request_of(Kind::kReduce, {4});
    request.signature.root = 3;
    expect_refusal(engine, request, "reduce received invalid root rank 3");

    for (const Dtype dtype : {Dtype::kI32, Dtype::kU8, Dtype::kBool}) {
      request = request_of(Kind::kAllreduce, {4}, dtype);
      request.signature.op = ReduceOp::kAdasum;
      expect_refusal(engine, request, "Adasum needs a floating-point type");
    }

    expect_refusal(engine, transfer("x", 1, 1, 4, g_memory, g_memory), "cannot send to itself");
    expect_refusal(engine, transfer("x", 0, 3, 4, g_memory, g_memory), "whose ranks are [0, 1, 2]");
    expect_refusal(engine, transfer("x", (rank + 1) % 3, (rank + 2) % 3, 4, g_memory, g_memory), "has no part in it");
    expect_refusal(engine, transfer("x", rank, (rank + 1) % 3, 4, nullptr, g_memory), "no memory");
    expect_refusal(engine, transfer("x", (rank + 1) % 3, rank, 4, g_memory, nullptr), "no memory");
    EXPECT_EQ(testing::allreduce(engine, "x", {1.0F}), std::vector<float>{3.0F}) << "nothing of them remains";
  });
}

TEST(Requests, DifferentRequestsFailOnAllRanks) {
  in_world(World::kShm, 2, {}, [](int rank, Engine& engine) {
    std::vector<float> in(64, 1);
    std::vector<float> out(64);
    const auto request = [&](Kind kind, std::vector<int64_t> shape) {
      return testing::request_of(kind, "x", Dtype::kF32, std::move(shape), in.data(), out.data());
    };
    EXPECT_EQ(
        mismatch(engine, request(Kind::kAlltoall, {2, rank == 0 ? 3 : 4})),
        "Mismatched alltoall tensor shapes (only the first dimension may differ) for 'x': rank 0 sent a tensor of "
        "shape [*, 3], but rank 1 sent a tensor of shape [*, 4].");
    EXPECT_EQ(
        mismatch(engine, request(Kind::kAlltoall, rank == 0 ? std::vector<int64_t>{2} : std::vector<int64_t>{2, 1})),
        "Mismatched alltoall tensor shapes for 'x': rank 0 sent a tensor of 1 dimension, but rank 1 sent a tensor "
        "of 2 dimensions.");
    EXPECT_EQ(mismatch(engine, request(Kind::kReducescatter, {rank == 0 ? 4 : 5})),
              "Mismatched reducescatter tensor shapes for 'x': rank 0 sent a tensor of shape [4], but rank 1 sent a "
              "tensor of shape [5].");
    Request average = request(Kind::kReducescatter, {4});
    average.signature.op = rank == 0 ? ReduceOp::kAverage : ReduceOp::kSum;
    EXPECT_EQ(mismatch(engine, average),
              "Mismatched reduction operation for 'x': rank 0 asked for Average, but rank 1 asked for Sum.");
    average.signature.op = ReduceOp::kAverage;
    average.signature.prescale = rank == 0 ? 1 : 2;
    EXPECT_NE(mismatch(engine, average).find("prescale and/or postscale factors"), std::string::npos);
    EXPECT_EQ(
        mismatch(engine, transfer("x", 0, 1, rank == 0 ? 3 : 4, in.data(), out.data())),
        "Mismatched transfer tensor shapes for 'x (0 to 1)': rank 0 sent a tensor of shape [3], but rank 1 sent a "
        "tensor of shape [4].");
    EXPECT_NE(mismatch(engine, request(rank == 0 ? Kind::kAlltoall : Kind::kReducescatter, {4}))
                  .find("rank 0 did alltoall, but rank 1 did reducescatter"),
              std::string::npos);
    EXPECT_EQ(testing::allreduce(engine, "x", {1.0F}), std::vector<float>{2.0F}) << "the job goes on";
  });
}

TEST(Requests, AlltoallRowsNeedNoNewAgreement) {
  in_world(World::kShm, 3, {}, [](int rank, Engine& engine) {
    for (int step = 0; step < 30; ++step) {
      // To rank r go r + step rows, but nothing from rank 1 in odd steps.
      Request request = testing::request_of(Kind::kAlltoall, "x", Dtype::kF32, {});
      std::vector<float> rows;
      for (int peer = 0; peer < 3; ++peer) {
        request.splits.push_back(rank == 1 && step % 2 == 1 ? 0 : peer + step);
        rows.insert(rows.end(), static_cast<size_t>(2 * request.splits.back()),
                    static_cast<float>(100 * rank + 10 * peer + step));
      }
      request.signature.shape = {static_cast<int64_t>(rows.size() / 2), 2};
      request.input = rows.data();
      const auto completion = finish(engine, engine.submit({request}).front());
      std::vector<float> expected;
      std::vector<int64_t> sizes;
      for (int peer = 0; peer < 3; ++peer) {
        sizes.push_back(peer == 1 && step % 2 == 1 ? 0 : rank + step);
        expected.insert(expected.end(), static_cast<size_t>(2 * sizes.back()),
                        static_cast<float>(100 * peer + 10 * rank + step));
      }
      ASSERT_EQ(completion->sizes, sizes);
      const auto* const data = reinterpret_cast<const float*>(completion->data.data());
      const size_t count = completion->data.size() / sizeof(float);
      ASSERT_EQ(std::vector<float>(data, data + count), expected);
    }
  });
}

TEST(Requests, TransfersOfOneNameBetweenDifferentRanksAreDifferent) {
  // A pipeline: every rank takes from the one before it and gives to the one after it, under one name, while the whole
  // world reduces.
  constexpr int kSize = 4;
  for (const World kind : {World::kShm, World::kTcp, World::kTwoHosts, World::kTree, World::kLoopback}) {
    in_world(kind, kSize, {}, [](int rank, Engine& engine) {
      for (int step = 0; step < 40; ++step) {
        const auto count = static_cast<int64_t>(step % 2 == 0 ? 10 : 30'000);
        std::vector<float> in(static_cast<size_t>(count));
        std::vector<float> out(static_cast<size_t>(count), static_cast<float>(rank * 1000 + step));
        std::vector<float> sum(500, 1);
        std::vector<Handle> handles;
        const auto submit = [&](const Request& request) { handles.push_back(engine.submit({request}).front()); };
        if (rank + 1 < kSize) {
          submit(transfer("act", rank, rank + 1, count, out.data(), nullptr));
        }
        submit(allreduce_request("sum", Dtype::kF32, {500}, sum.data(), sum.data()));
        if (rank > 0) {
          submit(transfer("act", rank - 1, rank, count, nullptr, in.data()));
        }
        for (const Handle handle : handles) {
          finish(engine, handle);
        }
        ASSERT_EQ(sum, std::vector<float>(500, kSize));
        if (rank > 0) {
          ASSERT_EQ(in, std::vector<float>(in.size(), static_cast<float>((rank - 1) * 1000 + step)));
        }
      }
      // A rank that has nothing to do with the last transfer would otherwise leave before the others have asked for it.
      testing::allreduce(engine, "end", {1.0F});
    });
  }
}

// --- names in flight -------------------------------------------------------------------------------------------------

TEST(Names, StayInFlightUntilUserHasSeenResult) {
  in_world(World::kLoopback, 1, {}, [](int, Engine& engine) {
    float value = 1;
    const Request request = allreduce_request("x", Dtype::kF32, {1}, &value, &value);
    // What was agreed on later is done later: nobody has to look at the first one.
    const auto until_done = [&] { testing::allreduce(engine, "after it", {1.0F}); };
    Handle handle = engine.submit({request}).front();
    until_done();
    expect_refusal(engine, request, "same name as another one that is still being processed: 'x'");
    EXPECT_EQ(engine.completions().poll(handle), 1);
    engine.completions().release({&handle, 1});

    handle = engine.submit({request}).front();
    EXPECT_EQ(engine.wait({&handle, 1}, base::Deadline::after_seconds(testing::kPatience)), engine::Waited::kDone);
    const Handle second = engine.submit({request}).front();
    until_done();
    EXPECT_EQ(engine.completions().poll(handle), 1) << "the first one's handle says nothing about the second";
    EXPECT_NE(refusal(engine, request), "");
    engine.completions().release({&second, 1});

    handle = engine.submit({request}).front();
    engine.completions().release({&handle, 1});  // nobody will ever look
    while (!refusal(engine, request).empty()) {
      std::this_thread::yield();
    }
  });
}

TEST(Names, AreFreeSoonIfUserNeverLooks) {
  in_world(World::kLoopback, 1, {}, [](int, Engine& engine) {
    float value = 1;
    const Request request = allreduce_request("x", Dtype::kF32, {1}, &value, &value);
    const int64_t submitted = base::now_ns();
    engine.submit({request});
    const auto deadline = base::Deadline::after_seconds(testing::kPatience);
    while (!refusal(engine, request).empty() && !deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_GT(base::now_ns() - submitted, 250'000'000);
    EXPECT_FALSE(deadline.passed());
  });
}

TEST(Names, AreFreeAfterRefusedSubmission) {
  in_world(World::kLoopback, 1, {}, [](int, Engine& engine) {
    float value = 1;
    const auto named = [&](const std::string& name) {
      return allreduce_request(name, Dtype::kF32, {1}, &value, &value);
    };
    const Handle taken = engine.submit({named("c")}).front();
    EXPECT_THROW(engine.submit({named("a"), named("b"), named("c")}), Error);
    EXPECT_THROW(engine.submit({named("a"), named("b"), named("a")}), Error);
    for (const Handle handle : engine.submit({named("a"), named("b")})) {
      finish(engine, handle);
    }
    finish(engine, taken);
  });
}

// --- looking inside --------------------------------------------------------------------------------------------------

std::vector<Event> events_of(Engine& engine, uint64_t& cursor) {
  std::vector<Event> events(4096);
  uint64_t lost = 0;
  events.resize(engine.events().read(cursor, events, lost));
  EXPECT_EQ(lost, 0U);
  return events;
}

TEST(Looking, EventsShowPhasesOfARequest) {
  in_world(World::kLoopback, 3, {}, [](int rank, Engine& engine) {
    uint64_t cursor = 0;
    events_of(engine, cursor);
    // Only now may the others ask for anything: before it is read for the first time, rank 0 does not record who
    // reports.
    testing::allreduce(engine, "begin", {1.0F});
    std::vector<float> values(6, 1);
    Request request = allreduce_request("way", Dtype::kF32, {2, 3}, values.data(), values.data());
    finish(engine, engine.submit({request}).front());
    testing::allreduce(engine, "end", {1.0F});
    std::map<Phase, Event> of_request;
    std::set<int> ready;
    uint32_t started = engine::kNone;
    bool round = false;
    for (const Event& event : events_of(engine, cursor)) {
      if (event.name != engine::kNone && engine.events().name_of(event.name) == "way") {
        of_request[event.phase] = event;
        if (event.phase == Phase::kRankReady) {
          ready.insert(event.rank);
        }
      }
      const bool agreed = of_request.contains(Phase::kAgreed);
      started = event.phase == Phase::kStarted && agreed && started == engine::kNone ? event.bucket : started;
      round |= event.phase == Phase::kRound;
    }
    EXPECT_TRUE(round);
    EXPECT_EQ(ready, rank == 0 ? (std::set<int>{0, 1, 2}) : std::set<int>{});
    ASSERT_TRUE(of_request.contains(Phase::kAgreed) && of_request.contains(Phase::kDone));
    EXPECT_EQ(of_request[Phase::kAgreed].bucket, started);
    EXPECT_EQ(of_request[Phase::kDone].bucket, started);
    EXPECT_EQ(of_request[Phase::kSubmitted].bucket, engine::kNone);
    EXPECT_EQ(engine.events().signature_of(of_request[Phase::kDone].name), "float32 [2, 3]");
    EXPECT_EQ(engine.events().signature_of(engine::kNone), "");
  });
}

TEST(Looking, StatisticsCountCopiedBytesOfAllreduces) {
  constexpr size_t kElements = size_t{1} << 18;
  in_world(World::kShm, 2, {}, [&](int, Engine& engine) {
    const auto copied_by = [&](const char* name, size_t elements) {
      const engine::Stats before = engine.stats();
      std::vector<float> values(elements, 1.0F);
      const auto count = static_cast<int64_t>(elements);
      const Request request = allreduce_request(name, Dtype::kF32, {count}, values.data(), values.data());
      finish(engine, engine.submit({request}).front());
      const collective::Copied was = before.kinds[static_cast<size_t>(Kind::kAllreduce)].copied;
      const collective::Copied is = engine.stats().kinds[static_cast<size_t>(Kind::kAllreduce)].copied;
      return std::pair(is.in - was.in, is.out - was.out);
    };
    // Each copies what the other one reduces, and its result.
    const size_t half = kElements / 2 * sizeof(float);
    EXPECT_EQ(copied_by("large", kElements), std::pair(half, half));
    // Each reduces all of it, straight into its tensor.
    EXPECT_EQ(copied_by("small", 16), std::pair(16 * sizeof(float), size_t{0}));
  });
}

TEST(Looking, StatisticsAreByKindAndSeparateWaitingFromNegotiating) {
  constexpr int64_t kLate = 500'000'000;
  std::atomic<bool> asked{false};
  in_world(World::kShm, 2, {}, [&](int rank, Engine& engine) {
    testing::allreduce(engine, "x", {1.0F});
    finish(engine, engine.submit({testing::request_of(Kind::kBarrier, "together")}).front());
    const engine::Stats before = engine.stats();
    float value = 1;
    const Request request = allreduce_request("x", Dtype::kF32, {1}, &value, &value);
    if (rank == 0) {
      const Handle handle = engine.submit({request}).front();
      asked = true;
      finish(engine, handle);
    } else {
      // So much later than the other one has asked, whenever that is.
      while (!asked) {
        std::this_thread::yield();
      }
      const auto late = base::Deadline::after_seconds(static_cast<double>(kLate) / 1e9);
      while (!late.passed()) {
        std::this_thread::sleep_for(std::chrono::nanoseconds(late.left_ns()));
      }
      finish(engine, engine.submit({request}).front());
    }
    const engine::Stats after = engine.stats();
    const auto& was = before.kinds[static_cast<size_t>(Kind::kAllreduce)];
    const auto& is = after.kinds[static_cast<size_t>(Kind::kAllreduce)];
    EXPECT_EQ(is.requests, 2U);
    EXPECT_EQ(is.buckets, 2U);
    EXPECT_EQ(is.bytes, 8U);
    EXPECT_GT(is.moving_ns, was.moving_ns);
    EXPECT_EQ(after.kinds[static_cast<size_t>(Kind::kBarrier)].requests, 1U);
    EXPECT_EQ(after.kinds[static_cast<size_t>(Kind::kBroadcast)].requests, 0U);
    EXPECT_EQ(after.rounds, 3U);
    const auto waited = static_cast<int64_t>(is.waiting_ns - was.waiting_ns);
    const auto negotiated = static_cast<int64_t>(is.negotiating_ns - was.negotiating_ns);
    if (rank == 0) {
      EXPECT_GT(waited, kLate / 2) << "it waited for the other";
      EXPECT_LT(negotiated, waited);
    } else {
      EXPECT_LT(waited, kLate / 2) << "it was the last one";
      EXPECT_GT(negotiated, 0);
    }
  });
}

}  // namespace
}  // namespace farandole
