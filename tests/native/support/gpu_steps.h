// The work of ranks on their GPUs in the simulation: a few reductions in flight at once, which NCCL takes over at some
// point.
#pragma once

#include <deque>
#include <optional>
#include <random>

#include "support/gpus.h"

namespace farandole::testing {

// Returns the error that ended the world, if any.
inline std::optional<base::Error> run_on_gpu(engine::Engine& engine, int device, int rank, int size, uint64_t seed,
                                             std::mt19937_64& order) {
  constexpr int kSteps = 4;
  constexpr size_t kTensors = 3;
  Program program(device);
  for (int step = 0; step < kSteps; ++step) {
    std::deque<Tensor> tensors;
    std::vector<engine::Request> requests;
    std::vector<float> sums;
    for (size_t number = 0; number < kTensors; ++number) {
      const size_t count = (seed + number * 7) % 40;
      const float base = static_cast<float>(step) + static_cast<float>(number) * 10;
      Tensor& tensor = tensors.emplace_back(program, std::vector<float>(count, static_cast<float>(rank) + base));
      requests.push_back(allreduce_on_gpu(program, "gpu " + std::to_string(number), tensor, tensor));
      sums.push_back(static_cast<float>(sum_of_ranks(size)) + static_cast<float>(size) * base);
    }
    std::vector<size_t> turn = {0, 1, 2};
    std::ranges::shuffle(turn, order);
    std::vector<engine::Handle> handles;
    std::optional<base::Error> failure;
    try {
      for (const size_t i : turn) {
        handles.push_back(engine.submit({requests[i]}).front());
      }
    } catch (const base::Error& error) {
      failure = error;
    }
    // In any case: tensors in flight belong to the engine until they are done.
    if (!handles.empty()) {
      try {
        launch(engine, program, handles);
      } catch (const base::Error& error) {
        failure = error;
      }
    }
    if (failure) {
      return failure;
    }
    for (size_t number = 0; number < kTensors; ++number) {
      const std::vector<float> found = tensors[number].read();
      EXPECT_EQ(found, std::vector<float>(found.size(), sums[number])) << "WRONG NUMBERS on a GPU in seed " << seed;
    }
  }
  return std::nullopt;
}

}  // namespace farandole::testing
