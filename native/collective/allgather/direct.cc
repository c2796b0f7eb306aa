// Allgather among workers that share memory: in rounds of one chunk, each member offers the next chunk of its
// part, and all members copy the chunks of all to their outputs.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "collective/allgather/allgather.h"

namespace farandole::collective {

void allgather_direct(Context& context, const AllgatherJob& job) {
  const std::vector<int>& team = context.group.members;
  const transport::ArenaView& arena = *context.pump.mesh().arena(context.pump.mesh().rank());
  const size_t chunk = context.staging.half_bytes();
  const size_t most = *std::ranges::max_element(job.bytes);
  const size_t own = job.bytes[static_cast<size_t>(context.group.index)];
  std::vector<size_t> starts(team.size());
  std::exclusive_scan(job.bytes.begin(), job.bytes.end(), starts.begin(), size_t{0});

  int slot = 0;
  for (size_t from = 0; from < most; from += chunk, slot ^= 1) {
    std::byte* const half = context.staging.acquire(slot);
    if (from < own) {
      std::memcpy(half, static_cast<const std::byte*>(job.input) + from, std::min(chunk, own - from));
    }
    context.steps.wait_for(team, context.steps.publish_at(team, slot, arena.offset_of(half)));
    for (size_t k = 0; k < team.size(); ++k) {
      if (from < job.bytes[k]) {
        std::memcpy(static_cast<std::byte*>(job.output) + starts[k] + from, context.steps.data_of(team[k], slot),
                    std::min(chunk, job.bytes[k] - from));
      }
    }
    context.steps.lend(slot, team, context.steps.publish(team));
  }
}

}  // namespace farandole::collective
