// What the tests of the fake GPU begin with: two of its devices, the context of the first current, and no delays.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "cuda/api.h"
#include "cuda/hooks.h"

namespace gpu_fake {

// For a call that must succeed.
inline void ok(Result result) { ASSERT_EQ(result, kSuccess); }

class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    ok(cuInit(0));
    fake_gpu_time("eager", 1, 0);
    for (Device device = 0; device < 2; ++device) {
      ok(cuDevicePrimaryCtxRetain(&contexts_[device], device));
    }
    ok(cuCtxSetCurrent(contexts_[0]));
    fake_gpu_reset_counts();
  }

  // Releases everything, so that each test begins without what another has left.
  void TearDown() override {
    for (Device device = 0; device < 2; ++device) {
      fake_gpu_break(device, 0);
      ok(cuDevicePrimaryCtxRelease_v2(device));
    }
    ok(cuCtxSetCurrent(nullptr));
    EXPECT_EQ(fake_gpu_count("live_allocations"), 0u);
    EXPECT_EQ(fake_gpu_count("live_streams"), 0u);
    EXPECT_EQ(fake_gpu_count("live_events"), 0u);
  }

  void use(Device device) { ok(cuCtxSetCurrent(contexts_[device])); }

  static Stream* stream(unsigned flags = kStreamNonBlocking) {
    Stream* made = nullptr;
    ok(cuStreamCreateWithPriority(&made, flags, 0));
    return made;
  }

  static Event* event(unsigned flags = kEventDisableTiming) {
    Event* made = nullptr;
    ok(cuEventCreate(&made, flags));
    return made;
  }

  static Address allocate(size_t bytes) {
    Address made = 0;
    ok(cuMemAlloc_v2(&made, bytes));
    return made;
  }

  static unsigned char* pinned(size_t bytes) {
    void* made = nullptr;
    ok(cuMemHostAlloc(&made, bytes, kHostAllocPortable));
    return static_cast<unsigned char*>(made);
  }

  // The bytes as they are now, in no stream's order.
  static std::vector<unsigned char> bytes_at(Address address, size_t bytes) {
    std::vector<unsigned char> found(bytes);
    fake_gpu_read(found.data(), address, bytes);
    return found;
  }

  Context* contexts_[2] = {};
};

}  // namespace gpu_fake
