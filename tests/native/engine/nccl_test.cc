// Requests in the memory of GPUs that NCCL runs: as soon as it is formed, in the order that was agreed on, with right
// results whatever delays the GPUs have.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "nccl/hooks.h"
#include "support/every_kind_on_gpu.h"

namespace farandole {
namespace {

using base::Code;
using base::Error;
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

class NcclRequests : public testing::Gpus {
 protected:
  void SetUp() override {
    Gpus::SetUp();
    nccl_fake::fake_nccl_fault("");
    nccl_fake::fake_nccl_reset_counts();
  }
  void TearDown() override {
    EXPECT_EQ(nccl_fake::fake_nccl_count("mismatches"), 0U);
    Gpus::TearDown();
  }
};

engine::EngineSettings with(backend::GpuMode mode) {
  engine::EngineSettings settings;
  settings.gpu = mode;
  return settings;
}

TEST_F(NcclRequests, EveryKindIsRightWithAnyDelaysOfTheGpu) {
  for (const int size : {1, 2, 3, 4}) {
    for (unsigned seed = 1; seed <= 3; ++seed) {
      gpu_fake::fake_gpu_time(seed == 1 ? "lazy" : "random", seed, 1000);
      in_world(size % 2 == 0 ? World::kShm : World::kTcp, size, with(backend::GpuMode::kNccl),
               [size](int rank, Engine& engine) {
                 Program program(rank);
                 for (const size_t count : {0, 1, 1001}) {
                   run_every_kind(size, rank, engine, program, count);
                 }
               });
    }
  }
  EXPECT_GT(nccl_fake::fake_nccl_count("groups"), 400U);
}

TEST_F(NcclRequests, ManyAtOnceKeepTheirOrderAndTheirMemory) {
  for (unsigned seed = 1; seed <= 3; ++seed) {
    gpu_fake::fake_gpu_time("random", seed, 2000);
    const int size = seed == 3 ? 3 : 2;
    in_world(seed == 2 ? World::kTcp : World::kShm, size, with(backend::GpuMode::kNccl),
             [size](int rank, Engine& engine) {
               Program program(rank);
               run_many_at_once(size, rank, engine, program);
             });
  }
}

// The rows that a request has received.
std::vector<float> take(Engine& engine, Program& program, Handle handle, size_t count) {
  const Tensor rows(program, count);
  EXPECT_EQ(engine.wait_on({&handle, 1}, program.device(), reinterpret_cast<device::Stream>(program.stream()),
                           base::Deadline::after_seconds(testing::kPatience)),
            engine::Waited::kDone);
  EXPECT_EQ(engine.take(handle, rows.data(), program.device(), reinterpret_cast<device::Stream>(program.stream())),
            count > 0);
  EXPECT_FALSE(engine.take(handle, rows.data(), program.device(), reinterpret_cast<device::Stream>(program.stream())));
  engine.completions().release({&handle, 1});
  return rows.read();
}

TEST_F(NcclRequests, RowsOfUnknownNumberAreReceivedInGpuMemory) {
  for (const char* const time : {"lazy", "random"}) {
    gpu_fake::fake_gpu_time(time, 1, 1000);
    for (const int size : {1, 3}) {
      in_world(World::kShm, size, with(backend::GpuMode::kNccl), [size](int rank, Engine& engine) {
        Program program(rank);
        const Tensor input(program, std::vector<float>(static_cast<size_t>(rank + 1), static_cast<float>(rank)));
        std::vector<float> all;
        std::vector<int64_t> rows;
        for (int other = 0; other < size; ++other) {
          all.insert(all.end(), static_cast<size_t>(other) + 1, static_cast<float>(other));
          rows.push_back(other + 1);
        }
        for (int round = 0; round < 3; ++round) {
          const Handle handle =
              engine.submit({on_gpu(program, Kind::kAllgather, "x", {rank + 1}, &input, nullptr)}).front();
          EXPECT_EQ(take(engine, program, handle, all.size()), all);
          // One that nobody takes.
          const Handle left =
              engine
                  .submit({on_gpu(program, Kind::kAllgather, "y" + std::to_string(round), {rank + 1}, &input, nullptr)})
                  .front();
          engine.completions().release({&left, 1});
        }
        testing::finish(engine, engine.submit({testing::request_of(Kind::kBarrier, "all here")}).front());
      });
    }
  }
}

TEST_F(NcclRequests, NcclTakesOverWhileRequestsAreInFlight) {
  gpu_fake::fake_gpu_time("random", 5, 500);
  in_world(World::kShm, 3, {}, [](int rank, Engine& engine) {
    Program program(rank);
    Tensor a(program, size_t{100});
    Tensor b(program, size_t{10});
    // Some requests are made before NCCL is formed and agreed on after that.
    const auto deadline = base::Deadline::after_seconds(testing::kPatience);
    for (int step = 0; step < 50 && !deadline.passed();) {
      a.compute(counting(100, static_cast<float>(rank)));
      b.compute(std::vector<float>(10, static_cast<float>(rank)));
      launch(engine, program,
             engine.submit({allreduce_on_gpu(program, "a", a, a), allreduce_on_gpu(program, "b", b, b)}));
      std::vector<float> sums = counting(100, 1);
      std::ranges::for_each(sums, [](float& each) { each *= 3; });
      ASSERT_EQ(a.read(), sums);
      ASSERT_EQ(b.read(), std::vector<float>(10, 3));
      const auto formed = testing::allreduce(engine, "formed", {nccl_fake::fake_nccl_count("groups") > 0 ? 1.0F : 0});
      step += formed[0] == 3 ? 1 : 0;
    }
  });
  EXPECT_GT(nccl_fake::fake_nccl_count("groups"), 50U);
}

TEST_F(NcclRequests, RowsThatCannotBeSharedEqually) {
  gpu_fake::fake_gpu_time("random", 6, 500);
  in_world(World::kTcp, 3, with(backend::GpuMode::kNccl), [](int rank, Engine& engine) {
    Program program(rank);
    const Tensor whole(program, counting(8, static_cast<float>(rank)));  // 4 rows of 2
    const size_t own_rows = rank == 0 ? 2 : 1;
    const Tensor own(program, own_rows * 2);
    launch(engine, program, engine.submit({on_gpu(program, Kind::kReducescatter, "rs", {4, 2}, &whole, &own)}));
    const auto first = static_cast<float>(rank == 0 ? 0 : rank + 1) * 2;
    std::vector<float> expected;
    for (size_t i = 0; i < own_rows * 2; ++i) {
      expected.push_back(3 + 3 * (first + static_cast<float>(i)));
    }
    EXPECT_EQ(own.read(), expected);

    engine::Request alltoall = on_gpu(program, Kind::kAlltoall, "a2a", {4, 2}, &whole, nullptr);
    alltoall.splits = {0, 1, 3};
    const std::vector<std::vector<float>> received = {
        {}, {0, 1, 1, 2, 2, 3}, {2, 3, 4, 5, 6, 7, 3, 4, 5, 6, 7, 8, 4, 5, 6, 7, 8, 9}};
    const auto& mine = received[static_cast<size_t>(rank)];
    EXPECT_EQ(take(engine, program, engine.submit({alltoall}).front(), mine.size()), mine);
  });
}

TEST_F(NcclRequests, ProcessSetsHaveSeparateCommunicators) {
  gpu_fake::fake_gpu_time("random", 7, 500);
  in_world(World::kShm, 3, with(backend::GpuMode::kNccl), [](int rank, Engine& engine) {
    Program program(rank);
    for (int round = 0; round < 3; ++round) {  // a set that is removed, and its number given to the next one
      const auto added = testing::finish(
          engine, engine.submit({testing::request_of(Kind::kAddGroup, "add", reduce::Dtype::kF32, {1, 2})}).front());
      const auto id = static_cast<uint32_t>(added->sizes.front());
      if (rank > 0) {
        const Tensor tensor(program, counting(4, static_cast<float>(rank)));
        engine::Request request = allreduce_on_gpu(program, "in the set", tensor, tensor);
        request.group = id;
        launch(engine, program, engine.submit({request}));
        EXPECT_EQ(tensor.read(), (std::vector<float>{3, 5, 7, 9}));
      }
      const Tensor all(program, counting(2, 1));
      launch(engine, program, engine.submit({allreduce_on_gpu(program, "all", all, all)}));
      EXPECT_EQ(all.read(), (std::vector<float>{3, 6}));
      testing::finish(
          engine,
          engine.submit({testing::request_of(Kind::kRemoveGroup, "remove", reduce::Dtype::kF32, {id})}).front());
    }
  });
}

TEST_F(NcclRequests, AWorkerThatHasJoinedAddsNothing) {
  gpu_fake::fake_gpu_time("random", 8, 500);
  in_world(World::kShm, 3, with(backend::GpuMode::kNccl), [](int rank, Engine& engine) {
    Program program(rank);
    {
      const Tensor tensor(program, counting(3, 1));
      launch(engine, program, engine.submit({allreduce_on_gpu(program, "with all", tensor, tensor)}));
      EXPECT_EQ(tensor.read(), (std::vector<float>{3, 6, 9}));
      if (rank != 2) {
        for (const auto& [op, expected] : {std::pair{engine::ReduceOp::kSum, 6.0F},
                                           {engine::ReduceOp::kAverage, 2.0F},
                                           {engine::ReduceOp::kMax, 3.0F},
                                           {engine::ReduceOp::kMin, 3.0F},
                                           {engine::ReduceOp::kProduct, 9.0F}}) {
          const Tensor without(program, std::vector<float>(1000, 3));
          engine::Request request = allreduce_on_gpu(program, "without " + std::to_string(expected), without, without);
          request.signature.op = op;
          launch(engine, program, engine.submit({request}));
          EXPECT_EQ(without.read(), std::vector<float>(1000, expected)) << static_cast<int>(op);
        }
      }
    }
    testing::finish(engine, engine.submit({testing::request_of(Kind::kJoin, "join")}).front());
  });
}

TEST_F(NcclRequests, SeveralGpusInOneProcess) {
  gpu_fake::fake_gpu_time("random", 9, 500);
  in_world(World::kShm, 2, with(backend::GpuMode::kNccl), [](int rank, Engine& engine) {
    Program first(rank);
    const Tensor one(first, counting(5, 1));
    launch(engine, first, engine.submit({allreduce_on_gpu(first, "its own", one, one)}));
    EXPECT_EQ(one.read(), (std::vector<float>{2, 4, 6, 8, 10}));
    Program second(rank + 2);
    const Tensor a(first, counting(5, 1));
    const Tensor b(second, counting(5, 2));
    const Tensor in(second, counting(3, 1));
    const Tensor out(second, size_t{3});
    const std::vector<Handle> handles =
        engine.submit({allreduce_on_gpu(first, "a", a, a), allreduce_on_gpu(second, "b", b, b),
                       allreduce_on_gpu(second, "not in place", in, out)});
    for (Program* const program : {&first, &second}) {
      ASSERT_EQ(engine.wait_on(handles, program->device(), reinterpret_cast<device::Stream>(program->stream()),
                               base::Deadline::after_seconds(testing::kPatience)),
                engine::Waited::kDone);
    }
    engine.completions().release(handles);
    EXPECT_EQ(a.read(), (std::vector<float>{2, 4, 6, 8, 10}));
    EXPECT_EQ(b.read(), (std::vector<float>{4, 6, 8, 10, 12}));
    EXPECT_EQ(out.read(), (std::vector<float>{2, 4, 6}));
    run_every_kind(2, rank, engine, second, 7);
    const Handle rows = engine.submit({on_gpu(second, Kind::kAllgather, "rows", {3}, &in, nullptr)}).front();
    EXPECT_EQ(take(engine, second, rows, 6), (std::vector<float>{1, 2, 3, 1, 2, 3}));
  });
}

TEST_F(NcclRequests, FactorsAndTheirOrder) {
  in_world(World::kShm, 2, with(backend::GpuMode::kNccl), [](int rank, Engine& engine) {
    Program program(rank);
    for (const auto& [op, prescale, postscale, expected] :
         {std::tuple{engine::ReduceOp::kSum, 0.5, 4.0, 12.0F},
          {engine::ReduceOp::kAverage, 0.5, 4.0, 6.0F},
          {engine::ReduceOp::kAverage, 1.0, 1.0, 3.0F},
          {engine::ReduceOp::kMax, 0.5, 4.0, 8.0F},  // through host memory
          {engine::ReduceOp::kProduct, 1.0, 1.0, 8.0F}}) {
      const Tensor tensor(program, std::vector<float>(7, static_cast<float>(2 * (rank + 1))));
      engine::Request request = allreduce_on_gpu(program, "x", tensor, tensor);
      request.signature.op = op;
      request.signature.prescale = prescale;
      request.signature.postscale = postscale;
      launch(engine, program, engine.submit({request}));
      EXPECT_EQ(tensor.read(), std::vector<float>(7, expected)) << static_cast<int>(op);
    }
  });
  EXPECT_EQ(nccl_fake::fake_nccl_count("operations"), 2U * 4);
}

TEST_F(NcclRequests, RanksThatShareAGpuGoThroughHostMemory) {
  in_world(World::kShm, 2, {}, [](int, Engine& engine) {
    Program program(0);
    const Tensor tensor(program, counting(3, 1));
    for (int step = 0; step < 20; ++step) {
      const Tensor sums(program, size_t{3});
      launch(engine, program, engine.submit({allreduce_on_gpu(program, "x", tensor, sums)}));
      EXPECT_EQ(sums.read(), (std::vector<float>{2, 4, 6}));
    }
  });
  EXPECT_EQ(nccl_fake::fake_nccl_count("inits"), 0U);
}

// Returns the error of a request that should fail.
std::string failure_of(Engine& engine, Program& program, const engine::Request& request) {
  try {
    launch(engine, program, engine.submit({request}));
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST_F(NcclRequests, RequiredNcclThatCannotBeUsedIsAnErrorOnAllRanks) {
  const auto expect_refusal = [](int device_of_first, const std::string& words) {
    in_world(
        World::kShm, 2,
        [] {
          engine::EngineSettings settings = with(backend::GpuMode::kNccl);
          settings.gpu_patience.forming = 0.2;
          return settings;
        }(),
        [&](int rank, Engine& engine) {
          Program program(rank == 0 ? device_of_first : 1);
          const Tensor tensor(program, counting(3, 1));
          const std::string error = failure_of(engine, program, allreduce_on_gpu(program, "x", tensor, tensor));
          EXPECT_NE(error.find("FARANDOLE_GPU=nccl asks for NCCL, which cannot be used. " + words), std::string::npos)
              << error;
        });
  };
  expect_refusal(1, "rank 0 and rank 1 use the same GPU");
  nccl_fake::fake_nccl_fault("rank1:op1:init_hangs");
  expect_refusal(0, "rank ");
}

TEST_F(NcclRequests, ErrorOfNcclEndsWorldOnAllRanksWithItsMessage) {
  engine::EngineSettings settings = with(backend::GpuMode::kNccl);
  settings.elastic = true;
  nccl_fake::fake_nccl_fault("rank1:op3:async_error");
  in_world(World::kShm, 2, settings, [&](int rank, Engine& engine) {
    Program program(rank);
    const Tensor tensor(program, counting(3, 1));
    std::string error = "none";
    const auto deadline = base::Deadline::after_seconds(testing::kPatience);
    while (error == "none" && !deadline.passed()) {
      error = failure_of(engine, program, allreduce_on_gpu(program, "x", tensor, tensor));
    }
    EXPECT_NE(error.find("NCCL: a collective failed with 'remote process exited or there was a network error'"),
              std::string::npos)
        << error;
  });
}

TEST_F(NcclRequests, FullGpuEndsWorldWithDriversMessage) {
  engine::EngineSettings settings = with(backend::GpuMode::kNccl);
  settings.elastic = true;
  in_world(World::kShm, 2, settings, [&](int rank, Engine& engine) {
    Program program(rank);
    const Tensor tensor(program, counting(3, 1));
    launch(engine, program, engine.submit({allreduce_on_gpu(program, "x", tensor, tensor)}));
    tensor.read();
    testing::allreduce(engine, "both", {1});
    if (rank == 0) {
      gpu_fake::fake_gpu_fail("cuMemAllocAsync", 1, 2);
    }
    testing::allreduce(engine, "both again", {1});
    const std::string error =
        failure_of(engine, program, on_gpu(program, Kind::kAllgather, "rows", {3}, &tensor, nullptr));
    EXPECT_NE(error.find("allocating memory failed with CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos) << error;
  });
}

// In a world that is lost, the launched collective of the others cannot end.
void lose_a_worker(const engine::EngineSettings& settings, bool goes_on) {
  testing::Meshes meshes(World::kShm, 2);
  testing::on_all_ranks(2, [&](int rank) {
    Engine engine(settings);
    Program program(rank);
    const Tensor tensor(program, counting(1000, 1));
    engine.enter(meshes.form(rank, 1), meshes.arena(rank));
    launch(engine, program, engine.submit({allreduce_on_gpu(program, "x", tensor, tensor)}));
    tensor.read();
    testing::allreduce(engine, "both", {1});
    if (rank == 1) {  // its input does not come
      gpu_fake::fake_gpu_hold(program.stream());
      const Tensor late(program, counting(1000, 1));
      const Handle handle = engine.submit({allreduce_on_gpu(program, "late", late, late)}).front();
      while (engine.completions().poll(handle) == 0 && nccl_fake::fake_nccl_count("groups") < 4) {
        std::this_thread::yield();
      }
      engine.revoke({1, transport::Sign::kRevoked, "rank 1 was lost: the test says so"});
      // Only then, or the collective might still end well.
      const auto deadline = base::Deadline::after_seconds(testing::kPatience);
      while (settings.elastic && nccl_fake::fake_nccl_count("aborts") < 2 && !deadline.passed()) {
        std::this_thread::yield();
      }
      gpu_fake::fake_gpu_release(program.stream());
      EXPECT_EQ(engine.wait({&handle, 1}, base::Deadline::after_seconds(testing::kPatience)), engine::Waited::kDone);
      EXPECT_EQ(engine.completions().find(handle)->code, Code::kWorkerLost);
      EXPECT_EQ(gpu_fake::fake_gpu_drain(program.stream()), gpu_fake::kSuccess);
    } else {
      const Tensor other(program, counting(1000, 1));
      EXPECT_NE(failure_of(engine, program, allreduce_on_gpu(program, "late", other, other)).find("rank 1 was lost"),
                std::string::npos);
    }
    engine.abandon({1, transport::Sign::kRevoked, "rank 1 was lost: the test says so"});
    if (goes_on) {
      engine.enter(meshes.form(rank, 2), meshes.arena(rank));
      const Tensor again(program, counting(10, 5));
      launch(engine, program, engine.submit({allreduce_on_gpu(program, "next", again, again)}));
      EXPECT_EQ(again.read().front(), 10);
      engine.leave(base::Deadline::after_seconds(testing::kPatience));
    }
  });
}

TEST_F(NcclRequests, LostElasticWorldAbortsAndNextOneGoesOn) {
  engine::EngineSettings settings = with(backend::GpuMode::kNccl);
  settings.elastic = true;
  for (const char* const time : {"eager", "random"}) {
    gpu_fake::fake_gpu_time(time, 1, 500);
    nccl_fake::fake_nccl_reset_counts();
    lose_a_worker(settings, /*goes_on=*/true);
    EXPECT_EQ(nccl_fake::fake_nccl_count("aborts"), 2U);
  }
}

// A rank that others wait for has made a request before, which all ranks have agreed on and its GPU has not finished.
TEST_F(NcclRequests, AStallReportTellsALaunchedRequestFromOneThatIsDone) {
  engine::EngineSettings settings = with(backend::GpuMode::kNccl);
  settings.elastic = true;
  settings.stall_warning_seconds = 0.2;  // several reports, so that some have an answer on a busy machine, too
  settings.stall_shutdown_seconds = 2;
  std::atomic<bool> has_ended{false};
  ::testing::internal::CaptureStderr();
  in_world(World::kShm, 2, settings, [&](int rank, Engine& engine) {
    Program program(rank);
    const Tensor tensor(program, counting(10, 1));
    launch(engine, program, engine.submit({allreduce_on_gpu(program, "x", tensor, tensor)}));
    tensor.read();
    testing::allreduce(engine, "both", {1});
    if (rank == 1) {  // its input does not come
      gpu_fake::fake_gpu_hold(program.stream());
    }
    const Tensor late(program, counting(10, 1));
    const Handle handle = engine.submit({allreduce_on_gpu(program, "late", late, late)}).front();
    const auto deadline = base::Deadline::after_seconds(testing::kPatience);
    while (engine.completions().poll(handle) == 0 && !deadline.passed()) {
      std::this_thread::yield();
    }
    if (rank == 0) {
      EXPECT_THROW(testing::allreduce(engine, "the one", {1.0F}), Error);
      has_ended = true;
    }
    uint64_t query = 0;
    while (rank == 1 && !has_ended && !deadline.passed()) {
      if (engine.wait_stall_query(base::Deadline::after_seconds(0.05), query) == 1) {
        engine.answer_stall_query(query, "train.py:41 in step");
      }
    }
    while (nccl_fake::fake_nccl_count("aborts") < 2 && !deadline.passed()) {
      std::this_thread::yield();
    }
    if (rank == 1) {
      gpu_fake::fake_gpu_release(program.stream());
    }
    EXPECT_EQ(engine.wait({&handle, 1}, base::Deadline::after_seconds(testing::kPatience)), engine::Waited::kDone);
    EXPECT_EQ(gpu_fake::fake_gpu_drain(program.stream()), gpu_fake::kSuccess);
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  const size_t said = log.find("rank 1: asked last for allreduce 'late' ");
  ASSERT_NE(said, std::string::npos) << log;
  EXPECT_NE(log.find("s ago, which is agreed on, but its result is not here yet; it is at", said), std::string::npos)
      << log;
}

TEST_F(NcclRequests, AWorkerWhoseAbortHangsEnds) {
  const auto hang = [] {
    engine::EngineSettings settings = with(backend::GpuMode::kNccl);
    settings.elastic = true;
    settings.gpu_patience.abort = 0.2;
    nccl_fake::fake_nccl_fault("rank0:op1:abort_hangs");
    lose_a_worker(settings, /*goes_on=*/false);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(hang(), ::testing::ExitedWithCode(EXIT_FAILURE), "NCCL does not abort its collectives");
}

TEST_F(NcclRequests, AWorkerWhoseGpuHasFailedEnds) {
  const auto fail = [] {
    engine::EngineSettings settings = with(backend::GpuMode::kNccl);
    settings.elastic = true;
    nccl_fake::fake_nccl_fault("rank0:op1:sticky");
    in_world(World::kShm, 1, settings, [](int, Engine& engine) {
      Program program(0);
      const Tensor tensor(program, counting(3, 1));
      failure_of(engine, program, allreduce_on_gpu(program, "x", tensor, tensor));
      // Its engine ends the process.
      std::this_thread::sleep_for(std::chrono::duration<double>(testing::kPatience));
    });
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(fail(), ::testing::ExitedWithCode(EXIT_FAILURE), "or has failed. This worker ends");
}

TEST_F(NcclRequests, AWorkerOfAFixedJobThatIsStuckEnds) {
  const auto get_stuck = [] {
    engine::EngineSettings settings = with(backend::GpuMode::kNccl);
    settings.gpu_patience.stuck = 0.2;
    nccl_fake::fake_nccl_fault("rank1:op2:hang");
    lose_a_worker(settings, /*goes_on=*/false);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(get_stuck(), ::testing::ExitedWithCode(EXIT_FAILURE), "in a collective of NCCL, which cannot end");
}

}  // namespace
}  // namespace farandole
