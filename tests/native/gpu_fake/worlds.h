// Worlds of ranks for tests of the fake NCCL: a thread, a device and a stream for each.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "cuda/api.h"
#include "cuda/hooks.h"
#include "nccl/api.h"
#include "nccl/hooks.h"

namespace nccl_fake {

inline Config non_blocking() {
  return {sizeof(Config), kConfigMagic, 21800, 0, kUndefined, kUndefined, kUndefined, nullptr, kUndefined};
}

struct Rank {
  int rank = 0;
  int size = 1;
  gpu_fake::Device device = 0;
  Comm* comm = nullptr;
  gpu_fake::Stream* stream = nullptr;

  void open(gpu_fake::Device on) {
    device = on;
    gpu_fake::Context* context = nullptr;
    ASSERT_EQ(gpu_fake::cuInit(0), gpu_fake::kSuccess);
    ASSERT_EQ(gpu_fake::cuDevicePrimaryCtxRetain(&context, device), gpu_fake::kSuccess);
    ASSERT_EQ(gpu_fake::cuCtxSetCurrent(context), gpu_fake::kSuccess);
    ASSERT_EQ(gpu_fake::cuStreamCreateWithPriority(&stream, gpu_fake::kStreamNonBlocking, 0), gpu_fake::kSuccess);
  }
  void close() {
    gpu_fake::cuDevicePrimaryCtxRelease_v2(device);
    gpu_fake::cuCtxSetCurrent(nullptr);
  }
  // Begins without blocking, and asks until it is over.
  Result join(const UniqueId& id) {
    Config config = non_blocking();
    const Result begun = ncclCommInitRankConfig(&comm, size, id, rank, &config);
    return begun == kInProgress ? settled() : begun;
  }
  // Polls until nothing is in progress.
  Result settled() const {
    Result state = kInProgress;
    while (state == kInProgress) {
      std::this_thread::yield();
      EXPECT_EQ(ncclCommGetAsyncError(comm, &state), kSuccess);
    }
    return state;
  }
  // For what may be in progress when it returns.
  void ok(Result result) const { ASSERT_EQ(result == kInProgress ? settled() : result, kSuccess); }
  void synchronize() const { ASSERT_EQ(gpu_fake::cuStreamSynchronize(stream), gpu_fake::kSuccess); }

  // Device memory that holds these values; read() waits for the stream.
  template <typename T>
  T* put(const std::vector<T>& values) const {
    gpu_fake::Address address = 0;
    EXPECT_EQ(gpu_fake::cuMemAlloc_v2(&address, values.size() * sizeof(T)), gpu_fake::kSuccess);
    gpu_fake::fake_gpu_write(address, values.data(), values.size() * sizeof(T));
    return static_cast<T*>(gpu_fake::pointer_to(address));
  }
  template <typename T>
  std::vector<T> read(const T* memory, size_t count) const {
    synchronize();
    std::vector<T> values(count);
    gpu_fake::fake_gpu_read(values.data(), reinterpret_cast<gpu_fake::Address>(memory), count * sizeof(T));
    return values;
  }
};

// Runs the body in a thread for each rank, with a communicator of all.
inline void in_world(int size, const std::function<void(Rank&)>& body) {
  UniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), kSuccess);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Rank one;
      one.rank = rank;
      one.size = size;
      one.open(rank);
      ASSERT_EQ(one.join(id), kSuccess) << ncclGetLastError(nullptr);
      body(one);
      if (one.comm != nullptr) {
        one.ok(ncclCommFinalize(one.comm));
        EXPECT_EQ(ncclCommDestroy(one.comm), kSuccess);
      }
      one.close();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(fake_nccl_count("live_comms"), 0u);
}

}  // namespace nccl_fake
