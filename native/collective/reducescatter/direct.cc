// Reducescatter among workers that share memory: in rounds of one chunk, each member offers a cell of every member's
// part, and reduces its own cell straight from its input and the arenas of the others into its output.
//
// The order of additions is the members' order, as in the direct allreduce: the rows have the bits that an allreduce
// would have given them.
#include <vector>

#include "collective/reducescatter/parts.h"
#include "collective/reducescatter/reducescatter.h"

namespace farandole::collective {

void reducescatter_direct(Context& context, const ReducescatterJob& job) {
  const std::vector<int>& team = context.group.members;
  const auto me = static_cast<size_t>(context.group.index);
  const transport::ArenaView& arena = *context.frames.mesh().arena(context.frames.mesh().rank());
  const size_t element = reduce::size_of(job.dtype);
  const size_t line = transport::kArenaAlignment / element;
  const size_t chunk = chunk_bytes(context);
  const size_t cell = chunk / element / team.size() / line * line;
  if (cell == 0) {
    // If a chunk lacks a cache line for each member (small staging, many members), links do as well.
    reducescatter_ring(context, job);
    return;
  }
  const Parts parts(job);
  const bool reads_input = job.prescale.is_one();
  const reduce::Stores stores =
      parts.longest() * element >= context.knobs.stream_bytes ? reduce::Stores::kStreamed : reduce::Stores::kCached;
  std::vector<const void*> inputs(team.size());
  int window = context.sequence.first_of_two();
  for (size_t from = 0; from < parts.longest(); from += cell, window ^= 1) {
    std::byte* const staged = context.staging.acquire(window);
    for (size_t k = 0; k < team.size(); ++k) {
      if (k != me || !reads_input) {
        parts.copy_in(k, from, cell, job.dtype, staged + k * cell * element);
      }
    }
    context.sequence.wait_for(team, context.sequence.publish_at(team, window, arena.offset_of(staged)));
    if (const size_t length = parts.length(me, from, cell); length > 0) {
      for (size_t k = 0; k < team.size(); ++k) {
        inputs[k] = context.sequence.data_of(team[k], window) + me * cell * element;
      }
      if (reads_input) {
        inputs[me] = parts.at(me, from);
      }
      void* const output = static_cast<std::byte*>(job.output) + from * element;
      reduce::reduce_to(job.dtype, job.op, inputs, {&output, 1}, length, job.postscale, stores);
    }
    context.sequence.lend(window, team, context.sequence.publish(team));
  }
}

}  // namespace farandole::collective
