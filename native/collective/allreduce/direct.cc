// Allreduce among workers that share memory.
//
// A chunk of the bucket lies in every member's arena: in place, or copied to staging. Member k reduces slice k of
// it from all arenas, in the order of the members, and writes the result to all of them. Each element is read and
// written by one member only, so that works in place. The order of additions is the members' order for every
// element, wherever it lies.
//
// Chunks are pipelined: the next one is copied in before the reduction of this one is waited for.
//
// Small buckets take a shorter way: everyone reduces everything, into its own outputs. That is more arithmetic
// and one meeting less; the order of additions, and so every bit, is the same.
#include <algorithm>

#include "collective/allreduce/allreduce.h"

namespace farandole::collective {
namespace {

// Below this, a second meeting costs more than reducing everything on every member.
constexpr size_t kSmallBytes = size_t{16} * 1024;

struct Direct {
  Direct(Context& in_context, const AllreduceJob& of_job)
      : context(in_context),
        job(of_job),
        bucket(of_job),
        team(in_context.group.members),
        element(reduce::size_of(of_job.dtype)),
        line(transport::kArenaAlignment / element),
        chunk(in_context.staging.half_bytes() / element / line * line),
        me(in_context.pump.mesh().rank()),
        home(bucket.offset_in(*in_context.pump.mesh().arena(me))) {}

  size_t chunk_end(size_t from) const { return std::min(bucket.end(), from + chunk); }

  // Makes the chunk that begins at `from` readable by all, and says so.
  uint64_t offer(size_t from, int slot) {
    const transport::ArenaView& arena = *context.pump.mesh().arena(me);
    if (home) {
      return context.steps.publish_at(team, slot, *home + from * element);
    }
    std::byte* const half = context.staging.acquire(slot);
    bucket.copy_in(from, chunk_end(from), job.dtype, half);
    return context.steps.publish_at(team, slot, arena.offset_of(half));
  }

  std::vector<std::byte*> data_of_all(int slot) const {
    std::vector<std::byte*> all;
    all.reserve(team.size());
    for (const int rank : team) {
      all.push_back(context.steps.data_of(rank, slot));
    }
    return all;
  }

  void reduce_own_slice(size_t from, int slot) {
    const std::vector<std::byte*> arenas = data_of_all(slot);
    const Slice slice = slice_of(chunk_end(from) - from, team.size(), static_cast<size_t>(context.group.index), line);
    std::vector<const void*> inputs(team.size());
    std::vector<void*> outputs(team.size());
    bucket.for_each_part(from + slice.from, from + slice.to, [&](size_t, size_t position, size_t, size_t length) {
      for (size_t k = 0; k < team.size(); ++k) {
        outputs[k] = arenas[k] + (position - from) * element;
        inputs[k] = outputs[k];
      }
      reduce::reduce_to(job.dtype, job.op, inputs, outputs, length, job.postscale);
    });
  }

  void run_pipelined() {
    uint64_t offered = offer(0, 0);
    int slot = 0;
    for (size_t from = 0; from < bucket.end(); from += chunk, slot ^= 1) {
      const size_t next = from + chunk;
      const uint64_t next_offered = next < bucket.end() ? offer(next, slot ^ 1) : 0;
      context.steps.wait_for(team, offered);
      reduce_own_slice(from, slot);
      context.steps.wait_for(team, context.steps.publish(team));
      if (!home) {
        bucket.copy_out(from, chunk_end(from), job.dtype, context.steps.data_of(me, slot), /*finish=*/false);
      }
      offered = next_offered;
    }
  }

  void run_small() {
    const transport::ArenaView& arena = *context.pump.mesh().arena(me);
    std::byte* const half = context.staging.acquire(0);
    bucket.copy_in(0, bucket.end(), job.dtype, half);
    context.steps.wait_for(team, context.steps.publish_at(team, 0, arena.offset_of(half)));
    const std::vector<std::byte*> arenas = data_of_all(0);
    std::vector<const void*> inputs(team.size());
    bucket.for_each_part(0, bucket.end(), [&](size_t i, size_t position, size_t offset, size_t length) {
      for (size_t k = 0; k < team.size(); ++k) {
        inputs[k] = arenas[k] + position * element;
      }
      if (job.pieces[i].output == nullptr) {
        return;  // absent: the result is dropped
      }
      void* const output = static_cast<std::byte*>(job.pieces[i].output) + offset * element;
      reduce::reduce_to(job.dtype, job.op, inputs, {&output, 1}, length, job.postscale);
    });
    context.steps.lend(0, team, context.steps.publish(team));
  }

  Context& context;
  const AllreduceJob& job;
  const Bucket bucket;
  const std::vector<int>& team;
  const size_t element;
  const size_t line;   // elements in a cache line: slices end at one, so that two members never write the same
  const size_t chunk;  // elements
  const int me;
  const std::optional<size_t> home;
};

}  // namespace

void allreduce_direct(Context& context, const AllreduceJob& job) {
  Direct direct(context, job);
  if (direct.bucket.end() == 0) {
    return;
  }
  if (direct.bucket.bytes() <= std::min(kSmallBytes, context.staging.half_bytes())) {
    direct.run_small();
  } else {
    direct.run_pipelined();
  }
}

}  // namespace farandole::collective
