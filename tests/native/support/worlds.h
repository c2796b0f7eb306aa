// Worlds of threads for tests: every rank has its own engine, and they are connected by the chosen transport.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "support/meshes.h"

namespace farandole::testing {

// Runs body(rank, engine) on all ranks of one world, each in a thread; then all leave in good order.
inline void in_world(Kind kind, int size, engine::EngineSettings settings,
                     const std::function<void(int, engine::Engine&)>& body) {
  if (kind == Kind::kTree) {
    settings.agreement_fanout = 1;
  }
  Meshes meshes(kind, size);
  on_all_ranks(size, [&](int rank) {
    engine::Engine engine(settings);
    auto mesh = meshes.form(rank);
    engine.enter(std::move(mesh), meshes.arena(rank));
    body(rank, engine);
    engine.leave(base::Deadline::after_seconds(kPatience));
  });
}

inline int sum_of_ranks(int size) { return size * (size - 1) / 2; }

// Waits for a handle and forgets it; throws what became of the request, kTimeout for a hang.
inline std::shared_ptr<const engine::Completion> finish(engine::Engine& engine, engine::Handle handle) {
  if (engine.wait({&handle, 1}, base::Deadline::after_seconds(kPatience)) != engine::Waited::kDone) {
    throw base::Error(base::Code::kTimeout, "the request is not done after a minute");
  }
  const std::shared_ptr<const engine::Completion> completion = engine.completions().find(handle);
  engine.completions().release({&handle, 1});
  if (completion->code != base::Code::kOk) {
    throw base::Error(completion->code, completion->error, completion->lost_rank);
  }
  return completion;
}

// The same without the help of a waiting thread: another thread does the work, and this one only polls.
inline void look_until_done(engine::Engine& engine, engine::Handle handle) {
  const auto deadline = base::Deadline::after_seconds(kPatience);
  while (engine.completions().poll(handle) == 0 && !deadline.passed()) {
    std::this_thread::yield();
  }
  EXPECT_EQ(engine.completions().poll(handle), 1);
  engine.completions().release({&handle, 1});
}

inline engine::Request allreduce_request(const std::string& name, reduce::Dtype dtype, std::vector<int64_t> shape,
                                         const void* input, void* output,
                                         engine::ReduceOp op = engine::ReduceOp::kSum) {
  engine::Request request;
  request.name = name;
  request.signature.kind = engine::Kind::kAllreduce;
  request.signature.dtype = dtype;
  request.signature.op = op;
  request.signature.shape = std::move(shape);
  request.input = input;
  request.output = output;
  return request;
}

inline engine::Request request_of(engine::Kind kind, const std::string& name, reduce::Dtype dtype = reduce::Dtype::kF32,
                                  std::vector<int64_t> shape = {}, const void* input = nullptr,
                                  void* output = nullptr) {
  engine::Request request = allreduce_request(name, dtype, std::move(shape), input, output);
  request.signature.kind = kind;
  return request;
}

// Submits one float32 allreduce and returns its result.
inline std::vector<float> allreduce(engine::Engine& engine, const std::string& name, std::vector<float> values,
                                    uint32_t group = 0) {
  engine::Request request =
      allreduce_request(name, reduce::Dtype::kF32, {static_cast<int64_t>(values.size())}, values.data(), values.data());
  request.group = group;
  finish(engine, engine.submit({request}).front());
  return values;
}

}  // namespace farandole::testing
