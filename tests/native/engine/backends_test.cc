// The interface between the engine and backends: which backend runs a request, and which calls it gets while a world
// lives.
#include <gtest/gtest.h>

#include <array>

#include "support/recording_backend.h"
#include "support/worlds.h"

namespace farandole {
namespace {

using base::Code;
using base::Error;
using engine::Engine;
using engine::EngineSettings;
using engine::Kind;
using engine::MemoryKind;
using reduce::Dtype;
using testing::device_recording;
using testing::finish;
using testing::host_recording;
using testing::in_world;
using World = testing::Kind;

constexpr int kSize = 3;
const std::array<const backend::Row*, 2> kRows = {&testing::kRecordingHost, &testing::kRecordingDevice};

class Backends : public ::testing::Test {
 protected:
  Backends() {
    settings_.backends = kRows;
    for (testing::Recording* const recording : {&host_recording(), &device_recording()}) {
      recording->clear();
      recording->delay = std::chrono::microseconds(0);
      recording->fails = false;
    }
  }
  EngineSettings settings_;
};

std::vector<float> allreduce_in(Engine& engine, MemoryKind memory, const std::string& name) {
  std::vector<float> values = {1, 2};
  engine::Request request = testing::allreduce_request(name, Dtype::kF32, {2}, values.data(), values.data());
  request.signature.memory = memory;
  finish(engine, engine.submit({request}).front());
  return values;
}

TEST_F(Backends, RequestsRunOnBackendOfTheirMemory) {
  in_world(World::kShm, kSize, settings_, [](int, Engine& engine) {
    EXPECT_EQ(allreduce_in(engine, MemoryKind::kHost, "h"), (std::vector<float>{3, 6}));
    EXPECT_EQ(allreduce_in(engine, MemoryKind::kDevice, "d"), (std::vector<float>{3, 6}));
    EXPECT_EQ(allreduce_in(engine, MemoryKind::kDevice, "e"), (std::vector<float>{3, 6}));
  });
  EXPECT_EQ(host_recording().count("run allreduce"), 1U * kSize);
  EXPECT_EQ(device_recording().count("run allreduce"), 2U * kSize);
  EXPECT_EQ(device_recording().count("make"), 1U * kSize);
  EXPECT_EQ(host_recording().count("revoke") + device_recording().count("revoke"), 0U) << "it ended in good order";
  EXPECT_EQ(device_recording().count("end"), 1U * kSize);
}

TEST_F(Backends, EveryKindOfCollectiveRunsOnABackend) {
  in_world(World::kShm, kSize, settings_, [](int rank, Engine& engine) {
    std::vector<float> values(kSize, 1);
    std::vector<float> out(kSize * kSize);
    for (const Kind kind : {Kind::kAllreduce, Kind::kAllgather, Kind::kBroadcast, Kind::kAlltoall, Kind::kReducescatter,
                            Kind::kReduce, Kind::kBarrier}) {
      finish(engine, engine
                         .submit({testing::request_of(kind, engine::name_of(kind), Dtype::kF32, {kSize}, values.data(),
                                                      out.data())})
                         .front());
    }
    if (rank < 2) {
      engine::Request transfer =
          testing::request_of(Kind::kTransfer, "t", Dtype::kF32, {kSize}, values.data(), out.data());
      transfer.signature.peer = 1;
      finish(engine, engine.submit({transfer}).front());
    }
    finish(engine, engine.submit({testing::request_of(Kind::kBarrier, "last")}).front());
  });
  for (const char* const what : {"run allreduce", "run allgather", "run alltoall", "run reducescatter", "run reduce"}) {
    EXPECT_EQ(host_recording().count(what), 1U * kSize) << what;
  }
  EXPECT_EQ(host_recording().count("run broadcast"), 1U * kSize + 2) << "a transfer is one among two";
}

TEST_F(Backends, RequestsOfDifferentBackendsAreNotFused) {
  in_world(World::kShm, 2, settings_, [](int, Engine& engine) {
    std::array<std::vector<float>, 4> values;
    std::vector<engine::Request> requests;
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = {1};
      requests.push_back(
          testing::allreduce_request("t" + std::to_string(i), Dtype::kF32, {1}, values[i].data(), values[i].data()));
      requests.back().signature.memory = i % 2 == 0 ? MemoryKind::kHost : MemoryKind::kDevice;
    }
    for (const engine::Handle handle : engine.submit(std::move(requests))) {
      finish(engine, handle);
    }
    EXPECT_EQ(values, (std::array<std::vector<float>, 4>{{{2}, {2}, {2}, {2}}}));
  });
  EXPECT_EQ(host_recording().count("run allreduce"), 2U);
  EXPECT_EQ(device_recording().count("run allreduce"), 2U);
}

TEST_F(Backends, RequestThatNoBackendCanRunIsRefusedAtTheCall) {
  constexpr std::array<const backend::Row*, 1> kDeviceOnly = {&testing::kRecordingDevice};
  settings_.backends = kDeviceOnly;
  in_world(World::kShm, 1, settings_, [](int, Engine& engine) {
    std::vector<float> values(2);
    engine::Request request =
        testing::request_of(Kind::kAllgather, "x", Dtype::kF32, {2}, values.data(), values.data());
    try {
      engine.submit({request});
      ADD_FAILURE() << "nothing was refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      EXPECT_STREQ(
          error.what(),
          "allgather 'x': no backend of this build runs allgather in host memory; recording_device does not take "
          "host memory.");
    }
    allreduce_in(engine, MemoryKind::kDevice, "x");
  });
}

TEST_F(Backends, ARequestThroughHostMemoryNeedsItsDevice) {
  in_world(World::kShm, 1, settings_, [](int, Engine& engine) {
    std::vector<float> values(2);
    engine::Request request =
        testing::request_of(Kind::kAllgather, "x", Dtype::kF32, {2}, values.data(), values.data());
    request.signature.memory = MemoryKind::kDevice;
    try {
      engine.submit({request});
      ADD_FAILURE() << "nothing was refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      EXPECT_STREQ(error.what(),
                   "allgather 'x': a request in device memory needs the number of its device, and the stream that its "
                   "tensor is computed in");
    }
    allreduce_in(engine, MemoryKind::kHost, "x");
  });
}

TEST_F(Backends, SlowBackendDelaysOnlyItsRequests) {
  device_recording().delay = std::chrono::milliseconds(50);
  in_world(World::kShm, 2, settings_, [](int, Engine& engine) {
    const auto started = std::chrono::steady_clock::now();
    allreduce_in(engine, MemoryKind::kDevice, "d");
    EXPECT_GE(std::chrono::steady_clock::now() - started, std::chrono::milliseconds(50));
  });
}

TEST_F(Backends, FailingBackendEndsWorldAndIsRevoked) {
  device_recording().fails = true;
  in_world(World::kShm, 2, settings_, [](int, Engine& engine) {
    EXPECT_THROW(allreduce_in(engine, MemoryKind::kDevice, "d"), Error);
    EXPECT_THROW(engine.check_health(), Error);
  });
  EXPECT_EQ(device_recording().count("revoke"), 2U);
  EXPECT_EQ(host_recording().count("revoke"), 2U);
}

TEST_F(Backends, EachWorldHasItsOwnInstances) {
  testing::Meshes meshes(World::kShm, 2);
  testing::on_all_ranks(2, [&](int rank) {
    Engine engine(settings_);
    for (uint64_t generation = 1; generation <= 2; ++generation) {
      engine.enter(meshes.form(rank, generation), meshes.arena(rank));
      EXPECT_EQ(allreduce_in(engine, MemoryKind::kDevice, "d"), (std::vector<float>{2, 4}));
      engine.leave(base::Deadline::after_seconds(testing::kPatience));
    }
  });
  EXPECT_EQ(device_recording().count("make"), 4U);
  EXPECT_EQ(device_recording().count("end"), 4U);
}

}  // namespace
}  // namespace farandole
