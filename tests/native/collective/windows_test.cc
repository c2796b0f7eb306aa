// When a member may offer data in shared memory while others still read what it offered before.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "collective/algorithm_table.h"
#include "collective/allgather/allgather.h"
#include "collective/allreduce/allreduce.h"
#include "collective/alltoall/alltoall.h"
#include "collective/broadcast/broadcast.h"
#include "collective/link_exchange.h"
#include "collective/reduce/reduce.h"
#include "collective/reducescatter/reducescatter.h"
#include "transport/loopback/loopback.h"

namespace farandole::collective {
namespace {

constexpr size_t kPieceBytes = 4096;
const std::vector<int> kTeam = {0, 1};

transport::LoopbackSettings two_workers() {
  transport::LoopbackSettings settings;
  settings.size = 2;
  settings.generation = 1;
  return settings;
}

// One member of a world of two.
struct Member {
  Member(transport::LoopbackWorld& world, int rank)
      : arena(world.arena(rank)),
        mesh(world.mesh(rank)),
        frames(*mesh, {}),
        sequence(frames),
        memory(static_cast<std::byte*>(arena.allocate(transport::kWindows * kPieceBytes))),
        staging(sequence, memory, kPieceBytes),
        exchanges(frames, staging),
        group{0, kTeam, rank},
        context{frames, sequence, staging, group, knobs, exchanges} {}
  ~Member() { arena.release(memory); }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // Which decision it has made data readable for last.
  uint64_t has_offered() const { return arena.view().header().sequence.load() >> 32; }

  transport::Arena& arena;
  std::unique_ptr<transport::Mesh> mesh;
  transport::FrameMultiplexer frames;
  ShmSequence sequence;
  std::byte* const memory;
  Staging staging;
  LinkExchanges exchanges;
  Knobs knobs;
  const Group group;
  Context context;
};

struct Values {
  std::vector<float> input = std::vector<float>(16);
  std::vector<float> output = std::vector<float>(32);
};

struct Collective {
  const char* name;
  void (*run)(Context& context, Values& values);
};

const Collective kCollectives[] = {
    {"allreduce",
     [](Context& context, Values& values) {
       AllreduceJob job;
       job.pieces.push_back({values.input.data(), values.input.data(), values.input.size()});
       allreduce_direct(context, job);
     }},
    {"allgather",
     [](Context& context, Values& values) {
       allgather_direct(context, {values.input.data(), {64, 64}, values.output.data()});
     }},
    {"broadcast",
     [](Context& context, Values& values) {
       broadcast_direct(context, {values.input.data(), values.input.data(), 64, /*root_index=*/0});
     }},
    {"alltoall",
     [](Context& context, Values& values) {
       alltoall_direct(context, {values.input.data(), {8, 8}, 4, [&](const auto&) { return values.output.data(); }});
     }},
    {"reducescatter",
     [](Context& context, Values& values) {
       ReducescatterJob job;
       job.input = values.input.data();
       job.counts = {8, 8};
       job.output = values.output.data();
       reducescatter_direct(context, job);
     }},
    {"reduce",
     [](Context& context, Values& values) {
       ReduceJob job;
       job.input = values.input.data();
       job.output = values.output.data();
       job.count = 16;
       job.root_index = 1;
       reduce_direct(context, job);
     }},
};

// Member 0 runs the collective as decision 1, for which member 1 has offered zeros; member 1 has not read what member 0
// offered. Then member 0 runs it as decision `next`. Returns the decision for which it has offered data last. A member
// that would have to wait stops there.
uint64_t offered_while_other_still_reads(const Collective& collective, uint32_t next) {
  transport::LoopbackWorld world(two_workers());
  Member own(world, 0);
  Member other(world, 1);
  Values values;
  other.sequence.begin(1);
  other.sequence.place(0, other.arena.view().offset_of(other.memory));
  other.sequence.publish_at(kTeam, 1, other.arena.view().offset_of(other.memory));
  own.sequence.begin(1);
  collective.run(own.context, values);
  own.mesh->world_status().revoke({1, transport::Sign::kRevoked, "member 1 stands still"});
  own.sequence.begin(next);
  try {
    collective.run(own.context, values);
  } catch (const base::Error&) {
  }
  return own.has_offered();
}

TEST(Windows, NextDecisionIsOfferedWhileOthersStillRead) {
  for (const Collective& collective : kCollectives) {
    EXPECT_EQ(offered_while_other_still_reads(collective, 2), 2U) << collective.name;
  }
}

TEST(Windows, DecisionAfterNextWaitsForReaders) {
  for (const Collective& collective : kCollectives) {
    EXPECT_EQ(offered_while_other_still_reads(collective, 3), 1U) << collective.name;
  }
}

}  // namespace
}  // namespace farandole::collective
