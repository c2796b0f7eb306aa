// Requests in the memory of GPUs, which go through host memory: results are right whatever delays the GPU has, and no
// thread waits for it.
#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <memory>
#include <numeric>
#include <thread>

#include "support/every_kind_on_gpu.h"

namespace farandole {
namespace {

using base::Code;
using base::Error;
using engine::Completion;
using engine::Engine;
using engine::Handle;
using engine::Kind;
using testing::allreduce_on_gpu;
using testing::counting;
using testing::in_world;
using testing::launch;
using testing::on_gpu;
using testing::Program;
using testing::run_every_kind;
using testing::run_many_at_once;
using testing::Tensor;
using World = testing::Kind;

class DeviceRequests : public testing::Gpus {};

engine::EngineSettings staged() {
  engine::EngineSettings settings;
  settings.gpu = backend::GpuMode::kStaged;
  return settings;
}

TEST_F(DeviceRequests, EveryKindIsRightWithAnyDelaysOfTheGpu) {
  for (const int size : {1, 2, 3, 4}) {
    for (unsigned seed = 1; seed <= 3; ++seed) {
      gpu_fake::fake_gpu_time(seed == 1 ? "lazy" : "random", seed, 1000);
      in_world(size % 2 == 0 ? World::kShm : World::kTcp, size, staged(), [size](int rank, Engine& engine) {
        Program program(rank);
        for (const size_t count : {0, 1, 1001}) {
          run_every_kind(size, rank, engine, program, count);
        }
      });
    }
  }
}

TEST_F(DeviceRequests, ManyAtOnceKeepTheirOrderAndTheirMemory) {
  for (unsigned seed = 1; seed <= 3; ++seed) {
    gpu_fake::fake_gpu_time("random", seed, 2000);
    const int size = seed == 3 ? 3 : 2;
    in_world(seed == 2 ? World::kTcp : World::kShm, size, staged(), [size](int rank, Engine& engine) {
      Program program(rank);
      run_many_at_once(size, rank, engine, program);
    });
  }
}

TEST_F(DeviceRequests, RowsOfUnknownNumberAreReceivedInHostMemory) {
  in_world(World::kShm, 3, staged(), [](int rank, Engine& engine) {
    Program program(rank);
    const Tensor input(program, std::vector<float>(static_cast<size_t>(rank), 7));
    const auto gathered =
        launch(engine, program, engine.submit({on_gpu(program, Kind::kAllgather, "x", {rank}, &input, nullptr)}));
    EXPECT_EQ(gathered->sizes, (std::vector<int64_t>{0, 1, 2}));
    ASSERT_EQ(gathered->data.size(), 3 * sizeof(float));
    std::vector<float> found(3);
    std::memcpy(found.data(), gathered->data.data(), gathered->data.size());
    EXPECT_EQ(found, (std::vector<float>{7, 7, 7}));
  });
}

TEST_F(DeviceRequests, NoThreadWaitsForTheGpu) {
  in_world(World::kShm, 2, staged(), [](int rank, Engine& engine) {
    Program program(rank);
    const Tensor tensor(program, size_t{1000});
    launch(engine, program, engine.submit({allreduce_on_gpu(program, "first", tensor, tensor)}));
    testing::allreduce(engine, "all here", {1});
    gpu_fake::fake_gpu_reset_counts();
    testing::allreduce(engine, "all here, too", {1});

    gpu_fake::fake_gpu_hold(program.stream());
    const Tensor late(program, counting(1000, 1));
    const Handle handle = engine.submit({allreduce_on_gpu(program, "late", late, late)}).front();
    // Other requests overtake one whose input is not there.
    EXPECT_EQ(testing::allreduce(engine, "on the host", {1}), std::vector<float>{2});
    EXPECT_EQ(engine.completions().poll(handle), 0);
    gpu_fake::fake_gpu_release(program.stream());
    launch(engine, program, {handle});
    EXPECT_EQ(gpu_fake::fake_gpu_count("host_waits"), 0U);
    std::vector<float> expected = counting(1000, 1);
    for (float& each : expected) {
      each *= 2;
    }
    EXPECT_EQ(late.read(), expected);
    testing::allreduce(engine, "both have looked", {1});
  });
}

TEST_F(DeviceRequests, RequestsOfOneNameKeepTheirOrderIfALaterInputComesFirst) {
  in_world(World::kShm, 2, staged(), [](int rank, Engine& engine) {
    Program first_program(rank);
    Program second_program(2 + rank);  // another GPU, whose copies do not wait for those of the first
    gpu_fake::fake_gpu_hold(first_program.stream());
    const Tensor first(first_program, counting(10, 1));
    const Tensor second(second_program, counting(10, 100));
    const auto in_turn = [](engine::Request request) {
      request.in_turn = true;
      return request;
    };
    const Handle earlier = engine.submit({in_turn(allreduce_on_gpu(first_program, "x", first, first))}).front();
    const Handle later = engine.submit({in_turn(allreduce_on_gpu(second_program, "x", second, second))}).front();
    const Tensor third(second_program, counting(10, 1000));
    launch(engine, second_program, engine.submit({allreduce_on_gpu(second_program, "after it", third, third)}));
    EXPECT_EQ(engine.completions().poll(later), 0) << "its input is there, and it waits for the one before it";
    if (rank == 1) {
      gpu_fake::fake_gpu_release(first_program.stream());
    }
    testing::allreduce(engine, "rank 1 goes first", {1});
    if (rank == 0) {
      gpu_fake::fake_gpu_release(first_program.stream());
    }
    launch(engine, first_program, {earlier});
    launch(engine, second_program, {later});
    std::vector<float> expected = counting(10, 1);
    std::ranges::for_each(expected, [](float& each) { each *= 2; });
    EXPECT_EQ(first.read(), expected);
    expected = counting(10, 100);
    std::ranges::for_each(expected, [](float& each) { each *= 2; });
    EXPECT_EQ(second.read(), expected);
    testing::allreduce(engine, "both have looked", {1});
  });
}

TEST_F(DeviceRequests, LaunchedRequestIsReportedBeforeItIsDone) {
  gpu_fake::fake_gpu_time("lazy", 1, 0);
  in_world(World::kShm, 2, staged(), [](int rank, Engine& engine) {
    Program program(rank);
    const Tensor tensor(program, counting(10, 1));
    std::atomic<bool> is_right_when_done = false;
    engine::Request request = allreduce_on_gpu(program, "x", tensor, tensor);
    request.callback = [&](const Completion&) {
      std::vector<float> found(10);
      gpu_fake::fake_gpu_read(found.data(), reinterpret_cast<gpu_fake::Address>(tensor.data()), tensor.bytes());
      is_right_when_done = found.front() == 2 && found.back() == 20;
    };
    for (int step = 0; step < 20; ++step) {  // of one name: each is free when the one before is launched
      is_right_when_done = false;
      tensor.read();
      const_cast<Tensor&>(tensor).compute(counting(10, 1));
      const Handle handle = engine.submit({request}).front();
      ASSERT_EQ(engine.wait_on({&handle, 1}, program.device(), reinterpret_cast<device::Stream>(program.stream()),
                               base::Deadline::after_seconds(testing::kPatience)),
                engine::Waited::kDone);
      EXPECT_EQ(engine.completions().poll(handle), 1);
      ASSERT_EQ(engine.wait({&handle, 1}, base::Deadline::after_seconds(testing::kPatience)), engine::Waited::kDone);
      engine.completions().release({&handle, 1});
      const auto deadline = base::Deadline::after_seconds(testing::kPatience);
      while (!is_right_when_done && !deadline.passed()) {
        std::this_thread::yield();
      }
      ASSERT_TRUE(is_right_when_done) << step;
    }
  });
}

TEST_F(DeviceRequests, SeveralStreamsAndGpusInOneProcess) {
  gpu_fake::fake_gpu_time("random", 3, 1000);
  in_world(World::kShm, 2, staged(), [](int rank, Engine& engine) {
    Program first(rank);
    Program second(rank + 2);
    Program third(rank + 2);
    const Tensor a(first, counting(5, 1));
    const Tensor b(second, counting(5, 2));
    const Tensor c(third, counting(5, 3));
    const std::vector<Handle> handles = engine.submit(
        {allreduce_on_gpu(first, "a", a, a), allreduce_on_gpu(second, "b", b, b), allreduce_on_gpu(third, "c", c, c)});
    for (Program* const program : {&first, &second, &third}) {
      ASSERT_EQ(engine.wait_on(handles, program->device(), reinterpret_cast<device::Stream>(program->stream()),
                               base::Deadline::after_seconds(testing::kPatience)),
                engine::Waited::kDone);
    }
    EXPECT_EQ(a.read(), (std::vector<float>{2, 4, 6, 8, 10}));
    EXPECT_EQ(b.read(), (std::vector<float>{4, 6, 8, 10, 12}));
    EXPECT_EQ(c.read(), (std::vector<float>{6, 8, 10, 12, 14}));
    engine.completions().release(handles);
  });
}

TEST_F(DeviceRequests, AWorkerThatHasJoinedTakesPartWithoutAGpu) {
  in_world(World::kShm, 3, staged(), [](int rank, Engine& engine) {
    if (rank == 2) {
      testing::finish(engine, engine.submit({testing::request_of(Kind::kJoin, "join")}).front());
      return;
    }
    {
      Program program(rank);
      const Tensor tensor(program, counting(3, 1));
      launch(engine, program, engine.submit({allreduce_on_gpu(program, "x", tensor, tensor)}));
      EXPECT_EQ(tensor.read(), (std::vector<float>{2, 4, 6}));
    }
    testing::finish(engine, engine.submit({testing::request_of(Kind::kJoin, "join")}).front());
  });
}

TEST_F(DeviceRequests, HostMemoryOnOneRankIsAMismatch) {
  in_world(World::kShm, 2, staged(), [](int rank, Engine& engine) {
    Program program(rank);
    const Tensor tensor(program, counting(3, 1));
    std::vector<float> values(3);
    engine::Request request =
        rank == 0 ? allreduce_on_gpu(program, "x", tensor, tensor)
                  : testing::request_of(Kind::kAllreduce, "x", reduce::Dtype::kF32, {3}, values.data(), values.data());
    try {
      launch(engine, program, engine.submit({request}));
      ADD_FAILURE() << "it went through";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kMismatch);
      EXPECT_NE(std::string(error.what()).find("rank 0 sent a tensor in device memory, but rank 1"), std::string::npos)
          << error.what();
    }
  });
}

TEST_F(DeviceRequests, InvalidRequestIsRefusedAtTheCall) {
  in_world(World::kShm, 1, staged(), [](int, Engine& engine) {
    Program program(0);
    const Tensor tensor(program, counting(3, 1));
    const auto refusal = [&](const engine::Request& request) {
      try {
        engine.submit({request});
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kInvalidArgument);
        return std::string(error.what());
      }
      return std::string("none");
    };
    engine::Request request = allreduce_on_gpu(program, "x", tensor, tensor);
    request.device = 1;
    EXPECT_EQ(refusal(request), "'x' is in the memory of GPU 0, not of GPU 1");
    request.device = 17;
    EXPECT_EQ(refusal(request),
              "there is no GPU 17: this process sees " + std::to_string(testing::kMostGpus) + " of them");

    std::vector<float> values(3);
    request = allreduce_on_gpu(program, "x", tensor, tensor);
    request.input = values.data();
    EXPECT_EQ(refusal(request), "'x' is said to be in the memory of GPU 0, but the driver does not know this address");

    EXPECT_EQ(gpu_fake::cuStreamBeginCapture_v2(program.stream(), 0), gpu_fake::kSuccess);
    EXPECT_NE(refusal(allreduce_on_gpu(program, "x", tensor, tensor)).find("a CUDA graph is being captured"),
              std::string::npos);
    void* graph = nullptr;
    gpu_fake::cuStreamEndCapture(program.stream(), &graph);

    launch(engine, program, engine.submit({allreduce_on_gpu(program, "x", tensor, tensor)}));
    EXPECT_EQ(tensor.read(), (std::vector<float>{1, 2, 3}));
  });
}

// Streams run when someone waits for them: a copy that has begun needlessly would find freed memory.
TEST_F(DeviceRequests, TensorsOfACallThatIsRefusedCanBeFreed) {
  gpu_fake::fake_gpu_time("lazy", 1, 0);
  in_world(World::kShm, 1, staged(), [](int, Engine& engine) {
    Program program(0);
    const Tensor tensor(program, counting(3, 1));
    launch(engine, program, engine.submit({allreduce_on_gpu(program, "first", tensor, tensor)}));
    const auto check_refusal = [&](const char* name, const auto& change, const char* reason) {
      // Too large for the pinned memory that is there already, and for each other's.
      Tensor one(program, size_t{1} << 15);
      Tensor other(program, size_t{1} << 16);
      std::vector<engine::Request> requests = {allreduce_on_gpu(program, "one", one, one),
                                               allreduce_on_gpu(program, name, other, other)};
      change(requests[1]);
      try {
        engine.submit(requests);
        ADD_FAILURE() << "taken, and not refused for " << reason;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
      }
      one.free_in_order();
      other.free_in_order();
    };
    const auto nothing = [](const engine::Request&) {};
    gpu_fake::fake_gpu_hold(program.stream());
    const Handle flying = engine.submit({allreduce_on_gpu(program, "flying", tensor, tensor)}).front();
    check_refusal("flying", nothing, "the same name");
    check_refusal("one", nothing, "the same name");
    check_refusal("other", [](engine::Request& request) { request.device = 1; }, "not of GPU 1");
    check_refusal("other", [](engine::Request& request) { request.group = 9; }, "the process set provided");
    // The copy of the first one has begun when this is seen.
    gpu_fake::fake_gpu_fail("cuMemHostAlloc", 2, gpu_fake::kOutOfMemory);
    check_refusal("other", nothing, "allocating pinned host memory");
    gpu_fake::fake_gpu_release(program.stream());
    launch(engine, program, {flying});
    EXPECT_EQ(tensor.read(), (std::vector<float>{1, 2, 3}));
    // Nothing of them remains: no names, and no callbacks, for which leave() would wait.
    launch(engine, program, engine.submit({allreduce_on_gpu(program, "one", tensor, tensor)}));
    launch(engine, program, engine.submit({allreduce_on_gpu(program, "other", tensor, tensor)}));
    EXPECT_EQ(tensor.read(), (std::vector<float>{1, 2, 3}));
  });
}

// A driver that hangs keeps the thread that submits, and nothing else: that request is refused when it goes on.
TEST_F(DeviceRequests, LeavingDoesNotWaitForASubmitInWhichTheDriverHangs) {
  testing::Meshes meshes(World::kShm, 1);
  Engine engine(staged());
  engine.enter(meshes.form(0), meshes.arena(0));
  Program program(0);
  const Tensor tensor(program, counting(3, 1));
  engine::Request request = allreduce_on_gpu(program, "x", tensor, tensor);
  bool is_called = false;
  request.callback = [&](const Completion&) { is_called = true; };
  gpu_fake::fake_gpu_hang("cuMemHostAlloc", 1);
  std::thread submitting([&] { EXPECT_THROW(engine.submit({request}), Error); });
  while (gpu_fake::fake_gpu_hang("cuMemHostAlloc", 1) == 0) {
    std::this_thread::yield();
  }
  std::atomic<bool> has_left = false;
  std::thread leaving([&] {
    engine.leave(base::Deadline::after_seconds(testing::kPatience));
    has_left = true;
  });
  const auto deadline = base::Deadline::after_seconds(testing::kPatience);
  while (!has_left && !deadline.passed()) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(has_left);
  gpu_fake::fake_gpu_hang("cuMemHostAlloc", 0);
  leaving.join();
  submitting.join();
  EXPECT_FALSE(is_called);
}

TEST_F(DeviceRequests, FailedGpuEndsWorldOnAllRanksWithDriversMessage) {
  std::barrier both(2);
  in_world(World::kShm, 2, staged(), [&](int rank, Engine& engine) {
    Program program(rank);
    const Tensor tensor(program, counting(3, 1));
    launch(engine, program, engine.submit({allreduce_on_gpu(program, "x", tensor, tensor)}));
    tensor.read();
    both.arrive_and_wait();
    if (rank == 1) {
      gpu_fake::fake_gpu_hold(program.stream());
      engine.submit({allreduce_on_gpu(program, "y", tensor, tensor)});
      gpu_fake::fake_gpu_break(1, 700);
    } else {
      try {
        launch(engine, program, engine.submit({allreduce_on_gpu(program, "y", tensor, tensor)}));
        ADD_FAILURE() << "it went through";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << error.what();
      }
    }
    const auto deadline = base::Deadline::after_seconds(testing::kPatience);
    while (!engine.ending() && !deadline.passed()) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(engine.ending().has_value());
    if (rank == 1) {
      gpu_fake::fake_gpu_break(1, 0);
      gpu_fake::fake_gpu_release(program.stream());
    }
  });
}

TEST_F(DeviceRequests, EndOfWorldFailsRequestsAndKeepsTheirMemory) {
  testing::Meshes meshes(World::kShm, 2);
  std::barrier both(2);
  testing::on_all_ranks(2, [&](int rank) {
    Engine engine(staged());
    Program program(rank);
    const Tensor tensor(program, counting(1000, 1));
    engine.enter(meshes.form(rank, 1), meshes.arena(rank));
    launch(engine, program, engine.submit({allreduce_on_gpu(program, "x", tensor, tensor)}));
    both.arrive_and_wait();
    gpu_fake::fake_gpu_hold(program.stream());
    const auto submit_and_lose = [&] {
      const Handle handle = engine.submit({allreduce_on_gpu(program, "late", tensor, tensor)}).front();
      if (rank == 1) {
        engine.revoke({1, transport::Sign::kRevoked, "rank 1 was lost: the test says so"});
      }
      launch(engine, program, {handle});
    };
    EXPECT_THROW(submit_and_lose(), Error);
    engine.abandon({1, transport::Sign::kRevoked, "rank 1 was lost: the test says so"});
    // In the next world the copy of before is still on its way: it writes to no memory that is in use again.
    engine.enter(meshes.form(rank, 2), meshes.arena(rank));
    Program other(rank);
    const Tensor again(other, counting(1000, 5));
    const Handle next = engine.submit({allreduce_on_gpu(other, "next", again, again)}).front();
    gpu_fake::fake_gpu_release(program.stream());
    launch(engine, other, {next});
    EXPECT_EQ(again.read().front(), 10);
    engine.leave(base::Deadline::after_seconds(testing::kPatience));
  });
}

}  // namespace
}  // namespace farandole
