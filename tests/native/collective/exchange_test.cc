// Allreduce between workers that share no memory, or only some of it: sizes around the borders of slices and chunks,
// tensors in place and not, in the arena and not. The expected bits are those of one order of additions, so they also
// show that nothing depends on how a bucket is cut.
#include <gtest/gtest.h>

#include "collective/members.h"
#include "support/numbers.h"

namespace farandole::collective {
namespace {

using reduce::Dtype;
using reduce::Op;
using testing::Bytes;
using testing::Member;

// Numbers whose sums are rounded, so that another order of additions gives other bits.
std::vector<double> rough_numbers(int rank, size_t count) {
  std::vector<double> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    numbers[i] = static_cast<double>((i * 2654435761U + static_cast<size_t>(rank) * 40503U) % 10007U) / 77.0;
  }
  return numbers;
}

struct Case {
  Dtype dtype;
  std::vector<size_t> counts;
  bool in_place;
};

// The input of rank `rank` for tensor number `tensor`.
Bytes input_of(const Case& with, int rank, size_t tensor) {
  return testing::encode(with.dtype, rough_numbers(rank + static_cast<int>(tensor) * 17, with.counts[tensor]));
}

std::vector<Bytes> run_case(Member& member, const collective::Choice& row, const Case& with) {
  AllreduceJob job{with.dtype, Op::kSum, {3.0, 1}, {1.0, member.size()}, {}};
  if (with.in_place) {
    job.prescale = {};
  }
  std::vector<Bytes> inputs;
  std::vector<Bytes> outputs;
  for (size_t tensor = 0; tensor < with.counts.size(); ++tensor) {
    inputs.push_back(input_of(with, member.rank(), tensor));
    outputs.emplace_back(inputs.back().size());
  }
  for (size_t tensor = 0; tensor < with.counts.size(); ++tensor) {
    void* const output = with.in_place ? inputs[tensor].data() : outputs[tensor].data();
    job.pieces.push_back({inputs[tensor].data(), output, with.counts[tensor]});
  }
  member.run(member.world, row, job);
  return with.in_place ? inputs : outputs;
}

class Exchange : public testing::EveryWorld {};

TEST_P(Exchange, AddsInOrderOfMembersForEveryCut) {
  if (kind() != testing::Kind::kTcp && kind() != testing::Kind::kLoopbackLinks) {
    return;  // with shared memory the order is another one
  }
  run(1024, [&](Member& member) {
    // Many chunks, few, and the whole in one; the whole to everyone, and slices.
    for (const uint64_t chunk : {4096U, 4160U, 1U << 20U}) {
      for (const uint64_t whole_below : {uint64_t{0}, uint64_t{1} << 30}) {
        collective::Knobs knobs;
        knobs.link_chunk_bytes = chunk;
        knobs.ring_bytes = whole_below;
        member.set_knobs(knobs);
        for (const auto& row : member.rows_of("allreduce", member.world)) {
          if (std::string(row.algorithm->name) != "exchange") {
            continue;
          }
          for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
            const Case cases[] = {{dtype, {1}, false},
                                  {dtype, {0}, true},
                                  {dtype, {15, 0, 1, 16}, true},
                                  {dtype, {767, 769, 3}, false},
                                  {dtype, {3000}, true}};
            for (const Case& with : cases) {
              const std::vector<Bytes> results = run_case(member, row, with);
              for (size_t tensor = 0; tensor < with.counts.size(); ++tensor) {
                std::vector<Bytes> inputs;
                for (int rank = 0; rank < member.size(); ++rank) {
                  inputs.push_back(input_of(with, rank, tensor));
                }
                const reduce::Scale prescale{with.in_place ? 1.0 : 3.0, 1};
                ASSERT_TRUE(results[tensor] ==
                            testing::reduced(dtype, Op::kSum, inputs, prescale, {1.0, member.size()}))
                    << reduce::name_of(dtype) << ", tensor " << tensor << " of " << with.counts.size() << ", chunks of "
                    << chunk << " bytes";
              }
            }
          }
        }
      }
    }
  });
}

TEST_P(Exchange, TwoLevelsGiveSameBitsInsideAndOutsideArenaForEveryCut) {
  if (kind() != testing::Kind::kTwoHosts || size() < 4) {
    return;
  }
  run(65536, [&](Member& member) {
    for (const auto& row : member.rows_of("allreduce", member.world)) {
      if (std::string(row.algorithm->name) != "two_level") {
        continue;
      }
      for (const Dtype dtype : {Dtype::kF32, Dtype::kF16}) {
        const size_t count = 50001;
        const Bytes input = testing::encode(dtype, rough_numbers(member.rank(), count));
        std::vector<Bytes> results;
        for (const uint64_t chunk : {4096U, 8192U, 32768U}) {
          collective::Knobs knobs;
          knobs.chunk_bytes = 2 * chunk;
          knobs.link_chunk_bytes = chunk;
          knobs.ring_bytes = chunk;
          member.set_knobs(knobs);
          // On every host some have theirs in the arena, and some outside.
          Bytes outside = input;
          auto* const inside = static_cast<std::byte*>(member.arena.allocate(input.size()));
          std::ranges::copy(input, inside);
          std::byte* const data = member.rank() / 2 % 2 == 0 ? outside.data() : inside;
          AllreduceJob job{dtype, Op::kSum, {}, {1.0, member.size()}, {{data, data, count}}};
          member.run(member.world, row, job);
          results.emplace_back(data, data + input.size());
          member.arena.release(inside);
        }
        ASSERT_TRUE(results[0] == results[1] && results[1] == results[2]) << reduce::name_of(dtype);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backend, Exchange, testing::every_world(), testing::name_of_world);

}  // namespace
}  // namespace farandole::collective
