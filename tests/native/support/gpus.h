// Tensors in the memory of the fake GPU, one GPU a rank, for worlds of threads. See tests/gpu_fake/README.md.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "cuda/api.h"
#include "cuda/hooks.h"
#include "support/worlds.h"

namespace farandole::testing {

inline constexpr int kMostGpus = 12;

// The devices of this process are made when the driver is used for the first time.
class Gpus : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("FAKE_GPU_DEVICES", std::to_string(kMostGpus).c_str(), 1);
    EXPECT_EQ(gpu_fake::cuInit(0), gpu_fake::kSuccess);
  }
  void SetUp() override {
    gpu_fake::fake_gpu_time("eager", 1, 0);
    gpu_fake::fake_gpu_reset_counts();
  }
  void TearDown() override {
    for (const char* const what : {"live_allocations", "live_host_allocations", "live_streams", "live_events"}) {
      EXPECT_EQ(gpu_fake::fake_gpu_count(what), 0U) << what;
    }
  }
};

// A rank's program: its GPU, and a stream in which it computes.
class Program {
 public:
  explicit Program(int device) : device_(device) {
    EXPECT_EQ(gpu_fake::cuDevicePrimaryCtxRetain(&context_, device), gpu_fake::kSuccess);
    make_current();
    EXPECT_EQ(gpu_fake::cuStreamCreate(&stream_, gpu_fake::kStreamNonBlocking), gpu_fake::kSuccess);
  }
  ~Program() {
    make_current();
    EXPECT_EQ(gpu_fake::fake_gpu_drain(stream_), gpu_fake::kSuccess);
    EXPECT_EQ(gpu_fake::cuStreamDestroy_v2(stream_), gpu_fake::kSuccess);
    EXPECT_EQ(gpu_fake::cuDevicePrimaryCtxRelease_v2(device_), gpu_fake::kSuccess);
    EXPECT_EQ(gpu_fake::cuCtxSetCurrent(nullptr), gpu_fake::kSuccess);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Of this thread; what uses the GPU does so by itself.
  void make_current() const { EXPECT_EQ(gpu_fake::cuCtxSetCurrent(context_), gpu_fake::kSuccess); }
  int device() const { return device_; }
  gpu_fake::Stream* stream() const { return stream_; }

 private:
  const int device_;
  gpu_fake::Context* context_ = nullptr;
  gpu_fake::Stream* stream_ = nullptr;
};

// float32 in the memory of a program's GPU.
class Tensor {
 public:
  // Full of NaNs.
  Tensor(Program& program, size_t count) : program_(program), count_(count) {
    if (count > 0) {
      program_.make_current();
      EXPECT_EQ(gpu_fake::cuMemAlloc_v2(&address_, bytes()), gpu_fake::kSuccess);
    }
  }
  // A kernel in the program's stream writes these values, when the stream comes to it.
  Tensor(Program& program, std::vector<float> values) : Tensor(program, values.size()) { compute(std::move(values)); }
  ~Tensor() {
    if (address_ != 0) {
      program_.make_current();
      EXPECT_EQ(gpu_fake::cuMemFree_v2(address_), gpu_fake::kSuccess);
    }
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  void* data() const { return reinterpret_cast<void*>(address_); }
  size_t bytes() const { return count_ * sizeof(float); }

  void compute(std::vector<float> values) {
    struct Kernel {
      gpu_fake::Address target;
      std::vector<float> values;
    };
    const auto run = [](void* argument) {
      const std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(argument));
      if (!kernel->values.empty()) {
        gpu_fake::fake_gpu_write(kernel->target, kernel->values.data(), kernel->values.size() * sizeof(float));
      }
    };
    program_.make_current();
    EXPECT_EQ(gpu_fake::fake_gpu_enqueue(program_.stream(), "compute", run, new Kernel{address_, std::move(values)}),
              gpu_fake::kSuccess);
  }

  // Frees the memory when the program's stream comes to it, as frameworks do.
  void free_in_order() {
    program_.make_current();
    EXPECT_EQ(gpu_fake::cuMemFreeAsync(std::exchange(address_, 0), program_.stream()), gpu_fake::kSuccess);
  }

  // What a kernel in the program's stream finds when the stream comes to it.
  std::vector<float> read() const {
    struct Kernel {
      gpu_fake::Address source;
      std::vector<float>& found;
    };
    std::vector<float> found(count_);
    const auto run = [](void* argument) {
      const std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(argument));
      if (!kernel->found.empty()) {
        gpu_fake::fake_gpu_read(kernel->found.data(), kernel->source, kernel->found.size() * sizeof(float));
      }
    };
    program_.make_current();
    EXPECT_EQ(gpu_fake::fake_gpu_enqueue(program_.stream(), "read", run, new Kernel{address_, found}),
              gpu_fake::kSuccess);
    EXPECT_EQ(gpu_fake::fake_gpu_drain(program_.stream()), gpu_fake::kSuccess);
    return found;
  }

 private:
  Program& program_;
  const size_t count_;
  gpu_fake::Address address_ = 0;
};

// A request of tensors in the memory of a program's GPU.
inline engine::Request on_gpu(Program& program, engine::Kind kind, const std::string& name, std::vector<int64_t> shape,
                              const Tensor* input, const Tensor* output) {
  engine::Request request =
      request_of(kind, name, reduce::Dtype::kF32, std::move(shape), input == nullptr ? nullptr : input->data(),
                 output == nullptr ? nullptr : output->data());
  request.signature.memory = backend::MemoryKind::kDevice;
  request.device = program.device();
  request.stream = program.stream();
  return request;
}

inline engine::Request allreduce_on_gpu(Program& program, const std::string& name, const Tensor& input,
                                        const Tensor& output) {
  return on_gpu(program, engine::Kind::kAllreduce, name, {static_cast<int64_t>(input.bytes() / sizeof(float))}, &input,
                &output);
}

// Lets the program's stream wait for these, without waiting for the GPU, and forgets the handles. Gives the first one's
// completion, of which only what came before it was launched may be read. Throws what became of it.
inline std::shared_ptr<const engine::Completion> launch(engine::Engine& engine, Program& program,
                                                        std::vector<engine::Handle> handles) {
  std::shared_ptr<const engine::Completion> failed;
  if (engine.wait_on(handles, program.device(), reinterpret_cast<device::Stream>(program.stream()),
                     base::Deadline::after_seconds(kPatience), &failed) != engine::Waited::kDone) {
    throw base::Error(base::Code::kTimeout, "the request is not launched after a minute");
  }
  auto completion = engine.completions().find(handles.front());
  engine.completions().release(handles);
  if (failed != nullptr) {
    throw base::Error(failed->code, failed->error, failed->lost_rank);
  }
  return completion;
}

}  // namespace farandole::testing
