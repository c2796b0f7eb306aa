// Every kind of request once, of tensors in the memory of GPUs, with the right results.
#pragma once

#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "support/gpus.h"

namespace farandole::testing {

// value, value + 1, ...
inline std::vector<float> counting(size_t count, float value) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), value);
  return values;
}

inline std::vector<float> joined(std::vector<std::vector<float>> parts) {
  std::vector<float> all;
  for (const auto& part : parts) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// Every kind of request once, among all ranks, of tensors of this many elements for each member.
inline void run_every_kind(int size, int rank, engine::Engine& engine, Program& program, size_t count) {
  const auto members = static_cast<size_t>(size);
  const auto rows = static_cast<int64_t>(count);
  const float mine = static_cast<float>(rank) * 1000;
  const auto sum_at = [&](size_t i) {
    return static_cast<float>(sum_of_ranks(size) * 1000) + static_cast<float>(size) * static_cast<float>(i);
  };
  std::vector<float> sums(count * members);
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] = sum_at(i);
  }
  const std::vector<float> some_sums(sums.begin(), sums.begin() + static_cast<ptrdiff_t>(count));
  std::vector<std::vector<float>> parts;
  for (int other = 0; other < size; ++other) {
    parts.push_back(counting(count, static_cast<float>(other) * 1000));
  }

  const Tensor input(program, counting(count, mine));
  const Tensor output(program, count);
  launch(engine, program, engine.submit({allreduce_on_gpu(program, "allreduce", input, output)}));
  EXPECT_EQ(output.read(), some_sums);
  EXPECT_EQ(input.read(), counting(count, mine));

  const Tensor in_place(program, counting(count, mine));
  launch(engine, program, engine.submit({allreduce_on_gpu(program, "in place", in_place, in_place)}));
  EXPECT_EQ(in_place.read(), some_sums);

  const Tensor sent(program, counting(count, mine));
  engine::Request broadcast = on_gpu(program, engine::Kind::kBroadcast, "broadcast", {rows}, &sent, &sent);
  broadcast.signature.root = size - 1;
  launch(engine, program, engine.submit({broadcast}));
  EXPECT_EQ(sent.read(), parts.back());

  const Tensor reduced(program, counting(count, mine));
  engine::Request reduce = on_gpu(program, engine::Kind::kReduce, "reduce", {rows}, &reduced, &reduced);
  reduce.signature.root = size - 1;
  launch(engine, program, engine.submit({reduce}));
  EXPECT_EQ(reduced.read(), rank == size - 1 ? some_sums : counting(count, mine));

  const Tensor gathered(program, count * members);
  launch(engine, program,
         engine.submit({on_gpu(program, engine::Kind::kAllgather, "allgather", {rows}, &input, &gathered)}));
  EXPECT_EQ(gathered.read(), joined(parts));

  const Tensor whole(program, counting(count * members, mine));
  const Tensor own(program, count);
  launch(engine, program,
         engine.submit({on_gpu(program, engine::Kind::kReducescatter, "reducescatter",
                               {static_cast<int64_t>(members), rows}, &whole, &own)}));
  EXPECT_EQ(own.read(), std::vector<float>(sums.begin() + static_cast<ptrdiff_t>(count) * rank,
                                           sums.begin() + static_cast<ptrdiff_t>(count) * (rank + 1)));

  const Tensor exchanged(program, count * members);
  launch(engine, program,
         engine.submit({on_gpu(program, engine::Kind::kAlltoall, "alltoall", {static_cast<int64_t>(members), rows},
                               &whole, &exchanged)}));
  std::vector<std::vector<float>> received;
  for (int other = 0; other < size; ++other) {
    received.push_back(counting(count, static_cast<float>(other) * 1000 + static_cast<float>(count) * mine / 1000));
  }
  EXPECT_EQ(exchanged.read(), joined(received));

  if (size > 1 && rank < 2) {
    const Tensor moved(program, counting(count, mine));
    engine::Request transfer = on_gpu(program, engine::Kind::kTransfer, "transfer", {rows},
                                      rank == 0 ? &moved : nullptr, rank == 0 ? nullptr : &moved);
    transfer.signature.peer = 1;
    launch(engine, program, engine.submit({transfer}));
    EXPECT_EQ(moved.read(), parts[0]);
  }
  finish(engine, engine.submit({request_of(engine::Kind::kBarrier, "all here")}).front());
}

// Requests that cannot be fused, three in each round, whose results are on their way when the next round begins: each
// has its place in the common order, and memory of its own.
inline void run_many_at_once(int size, int rank, engine::Engine& engine, Program& program) {
  constexpr int kRounds = 12;
  constexpr size_t kCount = 1000;
  const auto patience = base::Deadline::after_seconds(kPatience);
  std::vector<std::unique_ptr<Tensor>> tensors;
  std::vector<std::vector<float>> expected;
  for (int round = 0; round < kRounds; ++round) {
    const auto value = static_cast<float>(round * 10);
    for (const size_t count : {kCount, kCount, kCount + 1}) {
      tensors.push_back(std::make_unique<Tensor>(program, counting(count, value + static_cast<float>(rank))));
    }
    std::vector<float> sums(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      sums[i] = static_cast<float>(size) * (value + static_cast<float>(i)) + static_cast<float>(sum_of_ranks(size));
    }
    expected.push_back(std::move(sums));
    expected.push_back(counting(kCount, value + static_cast<float>(size - 1)));
    expected.push_back(counting(kCount + 1, value));
  }
  std::vector<engine::Handle> handles;
  for (size_t first = 0; first < tensors.size(); first += 3) {
    const auto name = [first](const char* what) { return what + std::to_string(first); };
    const Tensor& largest = *tensors[first + 1];
    const Tensor& sent = *tensors[first + 2];
    engine::Request maximum = allreduce_on_gpu(program, name("largest"), largest, largest);
    maximum.signature.op = engine::ReduceOp::kMax;
    const auto begun = engine.submit(
        {allreduce_on_gpu(program, name("sum"), *tensors[first], *tensors[first]), maximum,
         on_gpu(program, engine::Kind::kBroadcast, name("sent"), {static_cast<int64_t>(kCount + 1)}, &sent, &sent)});
    // Launched, and maybe not done. The program's stream does not wait for it, so the next copies may begin at once.
    for (const engine::Handle handle : begun) {
      while (engine.completions().poll(handle) == 0 && !patience.passed()) {
        std::this_thread::yield();
      }
      handles.push_back(handle);
    }
  }
  launch(engine, program, std::move(handles));
  for (size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_EQ(tensors[i]->read(), expected[i]) << "request " << i;
  }
}

}  // namespace farandole::testing
