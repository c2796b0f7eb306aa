// Broadcast among workers that share memory: the root offers chunk after chunk, the others copy it out.
#include <algorithm>
#include <cstring>

#include "collective/broadcast/broadcast.h"

namespace farandole::collective {

void broadcast_direct(Context& context, const BroadcastJob& job) {
  const std::vector<int>& team = context.group.members;
  const transport::ArenaView& arena = *context.pump.mesh().arena(context.pump.mesh().rank());
  const bool is_root = context.group.index == job.root_index;
  const int root = team[static_cast<size_t>(job.root_index)];
  const size_t chunk = context.staging.half_bytes();

  int slot = 0;
  for (size_t from = 0; from < job.bytes; from += chunk, slot ^= 1) {
    const size_t length = std::min(chunk, job.bytes - from);
    std::byte* const half = context.staging.acquire(slot);
    if (is_root) {
      std::memcpy(half, static_cast<const std::byte*>(job.input) + from, length);
    }
    // Everyone takes the same steps, so that their numbers stay the same; only the root's is waited for.
    context.steps.wait_for({&root, 1}, context.steps.publish_at(team, slot, arena.offset_of(half)));
    if (!is_root) {
      std::memcpy(static_cast<std::byte*>(job.output) + from, context.steps.data_of(root, slot), length);
    }
    context.steps.lend(slot, team, context.steps.publish(team));
  }
  if (is_root && job.output != job.input && job.bytes > 0) {
    std::memcpy(job.output, job.input, job.bytes);
  }
}

}  // namespace farandole::collective
