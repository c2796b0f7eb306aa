// Broadcast among workers that share memory: the root offers chunk after chunk, the others copy it out. What lies in
// the root's arena is offered where it lies, all of it at once.
#include <algorithm>
#include <cstring>

#include "collective/broadcast/broadcast.h"

namespace farandole::collective {

void broadcast_direct(Context& context, const BroadcastJob& job) {
  const std::vector<int>& team = context.group.members;
  const transport::ArenaView& arena = *context.frames.mesh().arena(context.frames.mesh().rank());
  const bool is_root = context.group.index == job.root_index;
  const int root = team[static_cast<size_t>(job.root_index)];
  const auto* const input = static_cast<const std::byte*>(job.input);
  const bool home = is_root && arena.contains(input, job.bytes);
  const Copy copy{context.knobs, job.bytes};
  size_t chunk = chunk_bytes(context);

  int window = context.sequence.first_of_two();
  for (size_t from = 0; from < job.bytes; from += chunk, window ^= 1) {
    size_t offset = home ? arena.offset_of(input) : 0;
    if (is_root && !home) {
      std::byte* const staged = context.staging.acquire(window);
      offset = arena.offset_of(staged);
      std::memcpy(staged, input + from, std::min(chunk, job.bytes - from));
    }
    // All members advance alike, so that their sequences stay comparable; only the root's is waited for.
    context.sequence.wait_for({&root, 1}, context.sequence.publish_at(team, window, offset, home));
    if (context.sequence.is_in_place(root, window)) {
      chunk = job.bytes;
    }
    if (!is_root) {
      copy(static_cast<std::byte*>(job.output) + from, context.sequence.data_of(root, window),
           std::min(chunk, job.bytes - from));
    }
    context.sequence.lend(window, team, context.sequence.publish(team));
  }
  if (is_root && job.output != job.input && job.bytes > 0) {
    copy(job.output, job.input, job.bytes);
  }
  if (home) {
    context.sequence.settle(window ^ 1);  // the input, which others read, is its owner's again
  }
}

}  // namespace farandole::collective
