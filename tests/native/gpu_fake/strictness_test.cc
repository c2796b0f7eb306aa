// What the fake GPU refuses, and what does not survive.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "gpu_fake/device.h"
#include "support/sanitized.h"

namespace gpu_fake {
namespace {

using Strictness = OnDevice;

TEST_F(Strictness, FreshMemoryIsFullOfNaNs) {
  const Address device = allocate(8);
  float values[2];
  fake_gpu_read(values, device, sizeof values);
  EXPECT_NE(values[0], values[0]);
  EXPECT_NE(values[1], values[1]);
}

TEST_F(Strictness, HostAccessEndsTheProcess) {
  if (farandole::testing::kSanitized) {
    GTEST_SKIP() << "the sanitizer takes the signal";
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Address device = allocate(4);
  EXPECT_EXIT({ *reinterpret_cast<volatile char*>(device) = 1; }, ::testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(Strictness, ThreadWithoutAContextIsRefused) {
  Stream* const s = stream();
  std::thread([&] {
    Stream* made = nullptr;
    Address address = 0;
    Event* e = nullptr;
    EXPECT_EQ(cuStreamCreateWithPriority(&made, 0, 0), kInvalidContext);
    EXPECT_EQ(cuMemAlloc_v2(&address, 1), kInvalidContext);
    EXPECT_EQ(cuEventCreate(&e, 0), kInvalidContext);
    EXPECT_EQ(cuStreamQuery(s), kInvalidContext);
    EXPECT_EQ(cuStreamSynchronize(nullptr), kInvalidContext);
    Context* context = contexts_[0];
    EXPECT_EQ(cuCtxPopCurrent_v2(&context), kInvalidContext);
    ok(cuCtxPushCurrent_v2(contexts_[0]));
    ok(cuStreamQuery(s));
    ok(cuCtxPopCurrent_v2(&context));
    EXPECT_EQ(context, contexts_[0]);
    EXPECT_EQ(cuStreamQuery(s), kInvalidContext);
  }).join();
}

TEST_F(Strictness, StreamAndEventOfAnotherDeviceAreRefused) {
  Stream* const s = stream();
  Event* const e = event();
  const Address device = allocate(1);
  use(1);
  Stream* const other = stream();
  EXPECT_EQ(cuMemsetD8Async(device, 0, 1, s), kInvalidHandle);
  EXPECT_EQ(cuEventRecord(e, s), kInvalidHandle);
  EXPECT_EQ(cuEventRecord(e, other), kInvalidHandle);
  Address address = 0;
  EXPECT_EQ(cuMemAllocAsync(&address, 1, s), kInvalidHandle);
  // Waiting for an event of another device is right.
  use(0);
  ok(cuEventRecord(e, s));
  use(1);
  ok(cuStreamWaitEvent(other, e, 0));
  ok(cuStreamSynchronize(other));
  EXPECT_EQ(fake_gpu_count("refusals"), 4u);
}

TEST_F(Strictness, UnknownHandlesAreRefused) {
  Stream* const s = stream();
  Event* const e = event();
  ok(cuEventDestroy_v2(e));
  EXPECT_EQ(cuEventRecord(e, s), kInvalidHandle);
  EXPECT_EQ(cuEventQuery(e), kInvalidHandle);
  EXPECT_EQ(cuEventDestroy_v2(e), kInvalidHandle);
  ok(cuStreamDestroy_v2(s));
  EXPECT_EQ(cuStreamDestroy_v2(s), kInvalidHandle);
  EXPECT_EQ(cuStreamDestroy_v2(nullptr), kInvalidHandle);
  EXPECT_EQ(cuStreamQuery(reinterpret_cast<Stream*>(kStreamPerThread)), kInvalidHandle);
  Context* context = nullptr;
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 4), kInvalidDevice);
  int device = 0;
  EXPECT_EQ(cuDeviceGet(&device, -1), kInvalidDevice);
}

TEST_F(Strictness, FreedAndForeignMemoryIsRefused) {
  Stream* const s = stream();
  const Address device = allocate(16);
  EXPECT_EQ(cuMemsetD8Async(device, 0, 17, s), kInvalidValue);
  EXPECT_EQ(cuMemsetD8Async(device + 15, 0, 2, s), kInvalidValue);
  ok(cuMemsetD8Async(device + 15, 0, 1, s));
  EXPECT_EQ(cuMemFree_v2(device + 1), kInvalidValue);
  ok(cuMemFree_v2(device));
  EXPECT_EQ(cuMemsetD8Async(device, 0, 1, s), kInvalidValue);
  EXPECT_EQ(cuMemFree_v2(device), kInvalidValue);
  ok(cuMemFree_v2(0));
  unsigned char host = 0;
  EXPECT_EQ(cuMemsetD8Async(reinterpret_cast<Address>(&host), 0, 1, s), kInvalidValue);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(&host, reinterpret_cast<Address>(&host), 1, s), kInvalidValue);
}

TEST_F(Strictness, MemoryComesAndGoesInTheStreamsOrder) {
  Stream* const s = stream();
  fake_gpu_hold(s);
  Address device = 0;
  ok(cuMemAllocAsync(&device, 4, s));
  ok(cuMemsetD8Async(device, 6, 4, s));
  ok(cuMemFreeAsync(device, s));
  EXPECT_EQ(cuMemsetD8Async(device, 7, 4, s), kInvalidValue);
  EXPECT_EQ(fake_gpu_count("live_allocations"), 1u);
  fake_gpu_release(s);
  ok(cuStreamSynchronize(s));
  EXPECT_EQ(fake_gpu_count("live_allocations"), 0u);
}

TEST_F(Strictness, MemoryFreedBeforeAnotherStreamUsesItBreaksTheDevice) {
  Stream* const user = stream();
  Stream* const owner = stream();
  Address device = 0;
  ok(cuMemAllocAsync(&device, 4, owner));
  ok(cuStreamSynchronize(owner));
  fake_gpu_hold(user);
  ok(cuMemsetD8Async(device, 6, 4, user));
  ok(cuMemFreeAsync(device, owner));
  ok(cuStreamSynchronize(owner));
  fake_gpu_release(user);
  EXPECT_EQ(cuStreamSynchronize(user), kIllegalAddress);
  Address more = 0;
  EXPECT_EQ(cuMemAlloc_v2(&more, 1), kIllegalAddress);
}

TEST_F(Strictness, ErrorOfADeviceStaysAndEndsWaits) {
  Stream* const s = stream();
  Event* const e = event();
  fake_gpu_hold(s);
  ok(cuEventRecord(e, s));
  std::thread waits([&] {
    ok(cuCtxSetCurrent(contexts_[0]));
    EXPECT_EQ(cuStreamSynchronize(s), kEccUncorrectable);
  });
  while (fake_gpu_count("host_waits") == 0) {
    std::this_thread::yield();
  }
  fake_gpu_break(0, kEccUncorrectable);
  waits.join();
  EXPECT_EQ(cuEventQuery(e), kEccUncorrectable);
  EXPECT_EQ(cuStreamQuery(s), kEccUncorrectable);
  EXPECT_EQ(cuCtxSynchronize(), kEccUncorrectable);
  use(1);
  ok(cuCtxSynchronize());
}

TEST_F(Strictness, FullDeviceIsOutOfMemoryUntilSomethingIsFreed) {
  const Address half = allocate(size_t{1} << 19);
  Address more = 0;
  EXPECT_EQ(cuMemAlloc_v2(&more, (size_t{1} << 19) + 1), kOutOfMemory);
  ok(cuMemFree_v2(half));
  const Address all = allocate(size_t{1} << 20);
  use(1);
  allocate(size_t{1} << 20);
  use(0);
  ok(cuMemFree_v2(all));
  size_t free = 0;
  size_t total = 0;
  ok(cuMemGetInfo_v2(&free, &total));
  EXPECT_EQ(free, total);
}

TEST_F(Strictness, PlannedCallFails) {
  fake_gpu_fail("cuMemAlloc_v2", 2, kOutOfMemory);
  const Address first = allocate(1);
  Address second = 0;
  EXPECT_EQ(cuMemAlloc_v2(&second, 1), kOutOfMemory);
  allocate(1);
  ok(cuMemFree_v2(first));
}

TEST_F(Strictness, PointersTellWhoseTheyAre) {
  use(1);
  const Address device = allocate(64);
  use(0);
  unsigned char* const host = pinned(64);
  unsigned char pageable = 0;
  Context* context = nullptr;
  unsigned type = 0;
  int ordinal = -1;
  Address base = 0;
  size_t size = 0;
  PointerAttribute wanted[] = {kPointerContext, kPointerMemoryType, kPointerDeviceOrdinal, kPointerRangeStart,
                               kPointerRangeSize};
  void* data[] = {static_cast<void*>(&context), &type, &ordinal, &base, &size};
  ok(cuPointerGetAttributes(5, wanted, data, device + 10));
  EXPECT_EQ(context, contexts_[1]);
  EXPECT_EQ(type, kMemoryDevice);
  EXPECT_EQ(ordinal, 1);
  EXPECT_EQ(base, device);
  EXPECT_EQ(size, 64u);
  ok(cuPointerGetAttributes(5, wanted, data, reinterpret_cast<Address>(host + 3)));
  EXPECT_EQ(type, kMemoryHost);
  EXPECT_EQ(ordinal, 0);
  ok(cuPointerGetAttributes(5, wanted, data, reinterpret_cast<Address>(&pageable)));
  EXPECT_EQ(type, 0u);
  EXPECT_EQ(context, nullptr);
  EXPECT_EQ(cuPointerGetAttribute(&type, kPointerMemoryType, reinterpret_cast<Address>(&pageable)), kInvalidValue);
  ok(cuMemHostRegister_v2(&pageable, 1, 0));
  ok(cuPointerGetAttribute(&type, kPointerMemoryType, reinterpret_cast<Address>(&pageable)));
  EXPECT_EQ(type, kMemoryHost);
  ok(cuMemHostUnregister(&pageable));
  ok(cuMemFreeHost(host));
}

TEST_F(Strictness, DevicesDiffer) {
  Uuid first;
  Uuid second;
  ok(cuDeviceGetUuid_v2(&first, 0));
  ok(cuDeviceGetUuid_v2(&second, 1));
  EXPECT_NE(std::memcmp(&first, &second, sizeof first), 0);
  char bus[16] = {};
  ok(cuDeviceGetPCIBusId(bus, sizeof bus, 1));
  EXPECT_STREQ(bus, "0000:11:00.0");
  int version = 0;
  ok(cuDriverGetVersion(&version));
  EXPECT_EQ(version, 13000);
}

TEST_F(Strictness, ContextIsGoneWhenItIsReleasedAsOftenAsRetained) {
  Context* again = nullptr;
  ok(cuDevicePrimaryCtxRetain(&again, 1));
  EXPECT_EQ(again, contexts_[1]);
  ok(cuDevicePrimaryCtxRelease_v2(1));
  use(1);
  Stream* const s = stream();
  ok(cuDevicePrimaryCtxRelease_v2(1));
  EXPECT_EQ(cuStreamQuery(s), kContextIsDestroyed);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(1), kInvalidContext);
  EXPECT_EQ(cuCtxPushCurrent_v2(contexts_[1]), kContextIsDestroyed);
  ok(cuDevicePrimaryCtxRetain(&again, 1));
  use(0);
}

TEST_F(Strictness, ForkOfAProcessThatUsesCudaCannotUseIt) {
  if (farandole::testing::kSanitized) {
    GTEST_SKIP() << "forks of threads are not for sanitizers";
  }
  const pid_t child = ::fork();
  if (child == 0) {
    int count = 0;
    ::_exit(cuInit(0) == kNotInitialized && cuDeviceGetCount(&count) == kNotInitialized ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(Strictness, LeaksAreReportedAtExit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("FAKE_GPU_LEAKS", "fail", 1);
        allocate(1);
        stream();
        std::exit(0);
      },
      ::testing::ExitedWithCode(86), "left at exit: 1 device allocations, 0 pinned ones, 1 streams, 0 events");
}

TEST(WithoutDevices, InitializationSaysSo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("FAKE_GPU_DEVICES", "0", 1);
        std::_Exit(cuInit(0) == kNoDevice ? 7 : 1);
      },
      ::testing::ExitedWithCode(7), "");
  EXPECT_EXIT(
      {
        ::setenv("CUDA_VISIBLE_DEVICES", "1,5,0", 1);
        int count = 0;
        char bus[16] = {};
        const bool is_right = cuInit(0) == kSuccess && cuDeviceGetCount(&count) == kSuccess && count == 1 &&
                              cuDeviceGetPCIBusId(bus, sizeof bus, 0) == kSuccess;
        std::_Exit(is_right && std::strcmp(bus, "0000:11:00.0") == 0 ? 7 : 1);
      },
      ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace gpu_fake
