// What the fake NCCL refuses, how it hangs, and its faults.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "gpu_fake/worlds.h"

extern char** environ;

namespace nccl_fake {
namespace {

class NcclStrictness : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    gpu_fake::fake_gpu_time("eager", 1, 0);
  }
  void TearDown() override {
    fake_nccl_fault("");
    gpu_fake::fake_gpu_time("eager", 1, 0);
    for (gpu_fake::Device device = 0; device < 4; ++device) {
      gpu_fake::fake_gpu_break(device, 0);
    }
  }
};

float* one_float(const Rank& world, float value = 1) { return world.put(std::vector<float>{value}); }

// Until the stream has come to its last operation, without a host wait: it may never come.
bool is_idle(const Rank& world) { return gpu_fake::cuStreamQuery(world.stream) == gpu_fake::kSuccess; }

TEST_F(NcclStrictness, InitializationIsInProgressUntilAllHaveCome) {
  UniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), kSuccess);
  Rank first{0, 2};
  first.open(0);
  Config config = non_blocking();
  ASSERT_EQ(ncclCommInitRankConfig(&first.comm, 2, id, 0, &config), kInProgress);
  Result state = kSuccess;
  ASSERT_EQ(ncclCommGetAsyncError(first.comm, &state), kSuccess);
  EXPECT_EQ(state, kInProgress);
  float* const data = one_float(first);
  EXPECT_EQ(ncclAllReduce(data, data, 1, kFloat32, kSum, first.comm, first.stream), kInvalidArgument);
  std::thread([&] {
    Rank second{1, 2};
    second.open(1);
    EXPECT_EQ(second.join(id), kSuccess);
    EXPECT_EQ(ncclCommAbort(second.comm), kSuccess);
    second.close();
  }).join();
  EXPECT_EQ(first.settled(), kSuccess);
  EXPECT_EQ(ncclCommAbort(first.comm), kSuccess);
  EXPECT_EQ(ncclCommAbort(first.comm), kInvalidArgument);
  first.close();
}

// Both ranks of a world of two try to come; what both get.
std::vector<Result> try_to_join(gpu_fake::Device of_second) {
  UniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), kSuccess);
  std::vector<Result> results(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Rank one{rank, 2};
      one.open(rank == 0 ? 0 : of_second);
      results[static_cast<size_t>(rank)] = one.join(id);
      ncclCommAbort(one.comm);
      one.close();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return results;
}

TEST_F(NcclStrictness, TwoRanksOnOneGpuAreRefusedUnlessTheyMayShareIt) {
  EXPECT_EQ(try_to_join(0), std::vector<Result>(2, kInvalidUsage));
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("Duplicate GPU detected : rank 1 and rank 0"),
            std::string::npos);
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  EXPECT_EQ(try_to_join(0), std::vector<Result>(2, kSuccess));
  ::setenv("FAKE_NCCL_VERSION", "22907", 1);
  EXPECT_EQ(try_to_join(0), std::vector<Result>(2, kInvalidUsage));
  EXPECT_EQ(try_to_join(1), std::vector<Result>(2, kSuccess));
  int version = 0;
  ncclGetVersion(&version);
  EXPECT_EQ(version, 22907);
  ::unsetenv("FAKE_NCCL_VERSION");
  ::unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

TEST_F(NcclStrictness, ArgumentsAreChecked) {
  in_world(2, [](Rank& world) {
    float* const data = one_float(world);
    Comm* const comm = world.comm;
    EXPECT_EQ(ncclAllReduce(data, data, 1, static_cast<Dtype>(10), kSum, comm, world.stream), kInvalidArgument);
    EXPECT_EQ(ncclAllReduce(data, data, 1, kFloat32, kFirstCreated, comm, world.stream), kInvalidArgument);
    EXPECT_EQ(ncclBroadcast(data, data, 1, kFloat32, 2, comm, world.stream), kInvalidArgument);
    EXPECT_EQ(ncclAllReduce(data, data, 1, kFloat32, kSum, nullptr, world.stream), kInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), kInvalidUsage);
    // An error in a group: nothing of it is launched.
    ncclGroupStart();
    world.ok(ncclAllReduce(data, data, 1, kFloat32, kSum, comm, world.stream));
    EXPECT_EQ(ncclBroadcast(data, data, 1, kFloat32, 2, comm, world.stream), kInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), kInvalidArgument);
    EXPECT_TRUE(is_idle(world));
    // With 0 elements, there is no operation at all.
    world.ok(ncclAllReduce(data, data, 0, kFloat32, kSum, comm, world.stream));
    EXPECT_TRUE(is_idle(world));
    Config config = non_blocking();
    config.magic = 0;
    Comm* none = nullptr;
    EXPECT_EQ(ncclCommInitRankConfig(&none, 1, UniqueId{}, 0, &config), kInvalidArgument);
    EXPECT_EQ(ncclCommInitRank(&none, 1, UniqueId{}, 1), kInvalidArgument);
  });
}

TEST_F(NcclStrictness, StreamOfAnotherDeviceIsRefused) {
  in_world(1, [](Rank& world) {
    gpu_fake::Context* context = nullptr;
    gpu_fake::Stream* other = nullptr;
    gpu_fake::cuDevicePrimaryCtxRetain(&context, 1);
    gpu_fake::cuCtxPushCurrent_v2(context);
    gpu_fake::cuStreamCreateWithPriority(&other, gpu_fake::kStreamNonBlocking, 0);
    gpu_fake::cuCtxPopCurrent_v2(nullptr);
    float* const data = one_float(world);
    EXPECT_EQ(ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, other), kUnhandledCudaError);
    gpu_fake::cuDevicePrimaryCtxRelease_v2(1);
  });
}

TEST_F(NcclStrictness, LaunchIsInProgressUntilItIsAskedFor) {
  gpu_fake::fake_gpu_time("random", 5, 100);
  in_world(1, [](Rank& world) {
    float* const data = one_float(world);
    ASSERT_EQ(ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, world.stream), kInProgress);
    EXPECT_EQ(ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, world.stream), kInvalidArgument);
    EXPECT_EQ(world.settled(), kSuccess);
    EXPECT_EQ(world.read(data, 1)[0], 1);
  });
}

TEST_F(NcclStrictness, StreamIsNotToBeUsedWhileALaunchIsInProgress) {
  EXPECT_DEATH(
      {
        gpu_fake::fake_gpu_time("random", 5, 100);
        in_world(1, [](Rank& world) {
          float* const data = one_float(world);
          ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, world.stream);
          gpu_fake::Event* done = nullptr;
          gpu_fake::cuEventCreate(&done, 0);
          gpu_fake::cuEventRecord(done, world.stream);
        });
      },
      "an event on stream .*, on which a collective of NCCL is in progress");
}

TEST_F(NcclStrictness, TwoThreadsInOneCommunicatorEndTheProcess) {
  EXPECT_DEATH(in_world(1,
                        [](Rank& world) {
                          float* const data = one_float(world);
                          gpu_fake::fake_gpu_hold(world.stream);
                          world.ok(ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, world.stream));
                          // It waits for the stream.
                          std::thread ending([&] { ncclCommDestroy(world.comm); });
                          for (;;) {
                            ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, world.stream);
                          }
                        }),
               "at once on one communicator");
}

TEST_F(NcclStrictness, WrongOverlapEndsTheProcess) {
  EXPECT_DEATH(in_world(1,
                        [](Rank& world) {
                          float* const data = world.put(std::vector<float>(3));
                          ncclAllReduce(data, data + 1, 2, kFloat32, kSum, world.comm, world.stream);
                        }),
               "input and output overlap");
}

TEST_F(NcclStrictness, HostMemoryBreaksTheDevice) {
  in_world(1, [](Rank& world) {
    float data = 1;
    world.ok(ncclAllReduce(&data, &data, 1, kFloat32, kSum, world.comm, world.stream));
    EXPECT_EQ(gpu_fake::cuStreamSynchronize(world.stream), gpu_fake::kIllegalAddress);
    EXPECT_EQ(ncclCommAbort(std::exchange(world.comm, nullptr)), kSuccess);
    gpu_fake::fake_gpu_break(0, 0);
  });
}

// All ranks abort when both have found that nothing comes; what was to be reduced is lost.
void expect_hang(const std::function<void(Rank&, float*)>& call) {
  const uint64_t before = fake_nccl_count("mismatches");
  in_world(2, [&](Rank& world) {
    float* const data = world.put(std::vector<float>(2, 1));
    call(world, data);
    while (fake_nccl_count("mismatches") == before) {
      std::this_thread::yield();
    }
    EXPECT_FALSE(is_idle(world));
    Result state = kInProgress;
    EXPECT_EQ(ncclCommGetAsyncError(world.comm, &state), kSuccess);
    EXPECT_EQ(state, kSuccess);
    EXPECT_EQ(ncclCommAbort(std::exchange(world.comm, nullptr)), kSuccess);
    world.synchronize();
    EXPECT_NE(world.read(data, 1)[0], 2);
  });
}

TEST_F(NcclStrictness, RanksThatDisagreeHangAndAreNamed) {
  const auto said_of = [](const std::function<void(Rank&, float*)>& call) {
    ::testing::internal::CaptureStderr();
    expect_hang(call);
    return ::testing::internal::GetCapturedStderr();
  };
  const auto contains = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(said_of([](Rank& world, float* data) {
             world.ok(ncclAllReduce(data, data, world.rank == 0 ? 1 : 2, kFloat32, kSum, world.comm, world.stream));
           }),
           "rank 0 has allreduce of 1 float32, sum, and rank 1 has allreduce of 2 float32, sum: this hangs");
  contains(said_of([](Rank& world, float* data) {
             world.ok(ncclAllReduce(data, data, 1, kFloat32, world.rank == 0 ? kSum : kMax, world.comm, world.stream));
           }),
           "rank 1 has allreduce of 1 float32, max");
  contains(said_of([](Rank& world, float* data) {
             if (world.rank == 0) {
               world.ok(ncclBroadcast(data, data, 1, kFloat32, 0, world.comm, world.stream));
             } else {
               world.ok(ncclAllReduce(data, data, 1, kInt32, kSum, world.comm, world.stream));
             }
           }),
           "rank 0 has broadcast of 1 float32, root 0, and rank 1 has allreduce of 1 int32");
  contains(said_of([](Rank& world, float* data) {
             if (world.rank == 0) {
               world.ok(ncclSend(data, 1, kFloat32, 1, world.comm, world.stream));
             } else {
               world.ok(ncclRecv(data, 2, kFloat32, 0, world.comm, world.stream));
             }
           }),
           "rank 0 has send of 1 float32 to 1, and rank 1 has receive of 2 float32 from 0");
}

TEST_F(NcclStrictness, OperationsOfACommunicatorKeepTheirOrderOnSeveralStreams) {
  in_world(2, [](Rank& world) {
    gpu_fake::Stream* second = nullptr;
    gpu_fake::cuStreamCreateWithPriority(&second, gpu_fake::kStreamNonBlocking, 0);
    float* const data = one_float(world);
    gpu_fake::fake_gpu_hold(world.stream);
    world.ok(ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, world.stream));
    world.ok(ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, second));
    EXPECT_EQ(gpu_fake::cuStreamQuery(second), gpu_fake::kNotReady);
    gpu_fake::fake_gpu_release(world.stream);
    EXPECT_EQ(gpu_fake::cuStreamSynchronize(second), gpu_fake::kSuccess);
    EXPECT_EQ(world.read(data, 1)[0], 4);
  });
}

// --- faults ---

using NcclFaults = NcclStrictness;

TEST_F(NcclFaults, HangingOperationEndsWithAbort) {
  fake_nccl_fault("rank1:op2:hang");
  in_world(2, [](Rank& world) {
    float* const data = one_float(world);
    world.ok(ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, world.stream));
    EXPECT_EQ(world.read(data, 1)[0], 2);
    world.ok(ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, world.stream));
    EXPECT_FALSE(is_idle(world));
    EXPECT_EQ(ncclGroupStart(), kSuccess);
    EXPECT_EQ(ncclCommAbort(std::exchange(world.comm, nullptr)), kSuccess);
    EXPECT_EQ(ncclGroupEnd(), kSuccess);
    world.synchronize();
  });
}

TEST_F(NcclFaults, WhicheverRankComesToItHasItOnce) {
  const uint64_t before = fake_nccl_count("faults");
  fake_nccl_fault("rank-1:op3:hang");
  in_world(2, [](Rank& world) {  // The third launch is one of rank 0 or of rank 1.
    float* const data = one_float(world);
    world.ok(ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, world.stream));
    EXPECT_EQ(world.read(data, 1)[0], 2);
    world.ok(ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, world.stream));
    EXPECT_FALSE(is_idle(world));
    EXPECT_EQ(ncclCommAbort(std::exchange(world.comm, nullptr)), kSuccess);
    world.synchronize();
  });
  EXPECT_EQ(fake_nccl_count("faults"), before + 1);
}

TEST_F(NcclFaults, AsyncErrorIsSeenByPolls) {
  fake_nccl_fault("rank0:op1:async_error");
  in_world(1, [](Rank& world) {
    float* const data = one_float(world);
    world.ok(ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, world.stream));
    Result state = kSuccess;
    while (state == kSuccess) {
      ncclCommGetAsyncError(world.comm, &state);
    }
    EXPECT_EQ(state, kRemoteError);
    EXPECT_EQ(ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, world.stream), kRemoteError);
    EXPECT_EQ(ncclCommAbort(std::exchange(world.comm, nullptr)), kSuccess);
    world.synchronize();
  });
}

TEST_F(NcclFaults, StickyErrorBreaksTheDevice) {
  fake_nccl_fault("rank0:op1:sticky");
  in_world(1, [](Rank& world) {
    float* const data = one_float(world);
    world.ok(ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, world.stream));
    EXPECT_EQ(gpu_fake::cuStreamSynchronize(world.stream), gpu_fake::kLaunchFailed);
    EXPECT_EQ(ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, world.stream), kUnhandledCudaError);
    EXPECT_EQ(ncclCommAbort(std::exchange(world.comm, nullptr)), kSuccess);
    gpu_fake::fake_gpu_break(0, 0);
  });
}

TEST_F(NcclFaults, HangingInitializationEndsWithAbort) {
  fake_nccl_fault("rank0:op1:init_hangs");
  UniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), kSuccess);
  Rank world;
  world.open(0);
  Config config = non_blocking();
  ASSERT_EQ(ncclCommInitRankConfig(&world.comm, 1, id, 0, &config), kInProgress);
  for (int i = 0; i < 10; ++i) {
    Result state = kSuccess;
    ASSERT_EQ(ncclCommGetAsyncError(world.comm, &state), kSuccess);
    EXPECT_EQ(state, kInProgress);
  }
  EXPECT_EQ(ncclCommAbort(world.comm), kSuccess);
  world.close();
}

TEST_F(NcclFaults, HangingAbortNeverReturns) {
  EXPECT_EXIT(
      {
        fake_nccl_fault("rank0:op1:abort_hangs");
        in_world(1, [](Rank& world) {
          std::thread aborting([&] {
            ncclCommAbort(world.comm);
            std::_Exit(1);
          });
          while (fake_nccl_count("aborts") == 0) {
            std::this_thread::yield();
          }
          std::_Exit(7);
        });
      },
      ::testing::ExitedWithCode(7), "");
}

TEST_F(NcclFaults, UnknownFaultIsNamed) {
  EXPECT_DEATH(fake_nccl_fault("rank0:op1:explode"), "FAKE_NCCL_FAULT is 'rank0:op1:explode'");
}

// --- processes ---

std::string hex(const UniqueId& id) {
  std::string text;
  for (const char byte : id.bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += kDigits[(byte >> 4) & 0xF];
    text += kDigits[byte & 0xF];
  }
  return text;
}

// What a child does: a rank of its own process. It ends with 7 when the sum was right, with 8 when it hung and was
// aborted, and with 9 when the world was refused.
TEST(NcclProcess, Child) {
  const char* const text = std::getenv("FAKE_TEST_ID");
  if (text == nullptr) {
    GTEST_SKIP() << "only as a child of the tests below";
  }
  UniqueId id;
  for (size_t i = 0; i < sizeof id.bytes; ++i) {
    id.bytes[i] = static_cast<char>(std::stoi(std::string(text + 2 * i, 2), nullptr, 16));
  }
  Rank world{std::stoi(std::getenv("FAKE_TEST_RANK")), 2};
  world.open(0);
  if (world.join(id) != kSuccess) {
    std::fprintf(stderr, "%s\n", ncclGetLastError(nullptr));
    std::_Exit(9);
  }
  float* const data = one_float(world, static_cast<float>(world.rank + 1));
  world.ok(ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, world.stream));
  const bool is_right = world.read(data, 1)[0] == 3;
  if (std::getenv("FAKE_TEST_LOSS") == nullptr) {
    std::_Exit(is_right ? 7 : 1);
  }
  world.ok(ncclAllReduce(data, data, 1, kFloat32, kSum, world.comm, world.stream));
  // The parent closes the pipe when the other one is dead.
  char byte = 0;
  while (::read(0, &byte, 1) > 0) {
  }
  const bool hangs = !is_idle(world);
  ncclCommAbort(world.comm);
  world.synchronize();
  std::_Exit(hangs ? 8 : 1);
}

pid_t spawn_child(const UniqueId& id, int rank, std::vector<std::string> more, int input = -1) {
  char filter[] = "--gtest_filter=NcclProcess.Child";
  char program[] = "/proc/self/exe";
  char* arguments[] = {program, filter, nullptr};
  more.push_back("FAKE_TEST_ID=" + hex(id));
  more.push_back("FAKE_TEST_RANK=" + std::to_string(rank));
  std::vector<char*> environment;
  for (std::string& one : more) {
    environment.push_back(one.data());
  }
  // The first value of a name counts, and shards are for the parent.
  for (char** one = environ; *one != nullptr; ++one) {
    if (std::strncmp(*one, "GTEST_", 6) != 0) {
      environment.push_back(*one);
    }
  }
  environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (input >= 0) {
    posix_spawn_file_actions_adddup2(&actions, input, 0);
  }
  pid_t child = -1;
  EXPECT_EQ(::posix_spawn(&child, program, &actions, nullptr, arguments, environment.data()), 0);
  posix_spawn_file_actions_destroy(&actions);
  return child;
}

int end_of(pid_t child) {
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(NcclProcesses, ReduceTogether) {
  UniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), kSuccess);
  const pid_t first = spawn_child(id, 0, {"CUDA_VISIBLE_DEVICES=0", "FAKE_GPU_TIME=random"});
  const pid_t second = spawn_child(id, 1, {"CUDA_VISIBLE_DEVICES=1", "FAKE_GPU_TIME=lazy"});
  EXPECT_EQ(end_of(first), 7);
  EXPECT_EQ(end_of(second), 7);
}

TEST(NcclProcesses, OnOneGpuOrWithTwoVersionsAreRefused) {
  UniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), kSuccess);
  pid_t first = spawn_child(id, 0, {});
  pid_t second = spawn_child(id, 1, {});
  EXPECT_EQ(end_of(first), 9);
  EXPECT_EQ(end_of(second), 9);
  ASSERT_EQ(ncclGetUniqueId(&id), kSuccess);
  first = spawn_child(id, 0, {"FAKE_GPU_HOST=a"});
  second = spawn_child(id, 1, {"FAKE_GPU_HOST=b", "FAKE_NCCL_VERSION=22105"});
  EXPECT_EQ(end_of(first), 9);
  EXPECT_EQ(end_of(second), 9);
}

TEST(NcclProcesses, SurvivorHangsUntilItAborts) {
  UniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), kSuccess);
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const pid_t first = spawn_child(id, 0, {"CUDA_VISIBLE_DEVICES=0", "FAKE_TEST_LOSS=1"}, pipe[0]);
  const pid_t second =
      spawn_child(id, 1, {"CUDA_VISIBLE_DEVICES=1", "FAKE_TEST_LOSS=1", "FAKE_NCCL_FAULT=rank1:op2:die"}, pipe[0]);
  EXPECT_EQ(end_of(second), -SIGKILL);
  ::close(pipe[1]);
  EXPECT_EQ(end_of(first), 8);
  ::close(pipe[0]);
}

}  // namespace
}  // namespace nccl_fake
