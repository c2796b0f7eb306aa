// Reduce to one root. Among workers that share memory, each member stages chunk after chunk, and the root reduces them
// from all arenas into its output. Only the root waits for all; another member waits only while the root still reads
// its staging. Over links it is a reducescatter of which the root gets everything.
//
// The order of additions is the members' order: the root has the bits that a direct or exchanged allreduce has.
#include "collective/reduce/reduce.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "collective/reducescatter/reducescatter.h"
#include "collective/scaled_copy.h"

namespace farandole::collective {
namespace {

// Members other than the root keep what they have.
void keep_input(const Context& context, const ReduceJob& job) {
  if (context.group.index != job.root_index && job.output != job.input && job.count > 0) {
    std::memcpy(job.output, job.input, job.count * reduce::size_of(job.dtype));
  }
}

}  // namespace

void reduce_direct(Context& context, const ReduceJob& job) {
  const std::vector<int>& team = context.group.members;
  const auto me = static_cast<size_t>(context.group.index);
  const auto root_index = static_cast<size_t>(job.root_index);
  const std::span<const int> root(&team[root_index], 1);
  const bool is_root = me == root_index;
  const bool reads_input = is_root && job.prescale.is_one();
  const transport::ArenaView& arena = *context.frames.mesh().arena(context.frames.mesh().rank());
  const size_t element = reduce::size_of(job.dtype);
  const size_t chunk = chunk_bytes(context) / element;
  const reduce::Stores stores =
      job.count * element >= context.knobs.stream_bytes ? reduce::Stores::kStreamed : reduce::Stores::kCached;
  const auto* const input = static_cast<const std::byte*>(job.input);
  std::vector<const void*> inputs(team.size());
  int window = context.sequence.first_of_two();
  for (size_t from = 0; from < job.count; from += chunk, window ^= 1) {
    const size_t length = std::min(chunk, job.count - from);
    std::byte* const staged = context.staging.acquire(window);
    if (!reads_input) {
      scaled_copy(job.dtype, job.dtype, input + from * element, staged, length, job.prescale);
    }
    const uint64_t staged_by_all = context.sequence.publish_at(root, window, arena.offset_of(staged));
    if (is_root) {
      context.sequence.wait_for(team, staged_by_all);
      for (size_t k = 0; k < team.size(); ++k) {
        inputs[k] = context.sequence.data_of(team[k], window);
      }
      if (reads_input) {
        inputs[me] = input + from * element;
      }
      void* const output = static_cast<std::byte*>(job.output) + from * element;
      reduce::reduce_to(job.dtype, job.op, inputs, {&output, 1}, length, job.postscale, stores);
    }
    // All members advance alike, so that their sequences stay comparable; only the root reads what others have staged.
    context.sequence.lend(window, root, context.sequence.publish(is_root ? std::span<const int>(team) : root));
  }
  keep_input(context, job);
}

void reduce_exchange(Context& context, const ReduceJob& job) {
  ReducescatterJob scatter{job.dtype, job.op, job.prescale, job.postscale, job.input, {}, job.output};
  scatter.counts.assign(context.group.size(), 0);
  scatter.counts[static_cast<size_t>(job.root_index)] = job.count;
  reducescatter_exchange(context, scatter);
  keep_input(context, job);
}

}  // namespace farandole::collective
