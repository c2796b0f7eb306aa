// Allgather among workers that share memory: in rounds of one chunk, each member offers the next chunk of its
// part, and all members copy the chunks of the others to their outputs. A part that lies in an arena is offered where
// it lies, and not copied.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "collective/allgather/allgather.h"

namespace farandole::collective {

void allgather_direct(Context& context, const AllgatherJob& job) {
  const std::vector<int>& team = context.group.members;
  const auto me = static_cast<size_t>(context.group.index);
  const transport::ArenaView& arena = *context.frames.mesh().arena(context.frames.mesh().rank());
  const size_t chunk = chunk_bytes(context);
  const size_t most = *std::ranges::max_element(job.bytes);
  const auto* const input = static_cast<const std::byte*>(job.input);
  const bool home = arena.contains(input, job.bytes[me]);
  std::vector<size_t> starts(team.size());
  std::exclusive_scan(job.bytes.begin(), job.bytes.end(), starts.begin(), size_t{0});
  const Copy copy{context.knobs, starts.back() + job.bytes.back()};
  std::byte* const output = static_cast<std::byte*>(job.output);

  int window = context.sequence.first_of_two();
  for (size_t from = 0; from < most; from += chunk, window ^= 1) {
    const size_t own = from < job.bytes[me] ? std::min(chunk, job.bytes[me] - from) : 0;
    size_t offset = home ? arena.offset_of(input) + from : 0;
    if (!home) {
      std::byte* const staged = context.staging.acquire(window);
      offset = arena.offset_of(staged);
      if (own > 0) {
        std::memcpy(staged, input + from, own);
      }
    }
    const uint64_t offered = context.sequence.publish_at(team, window, offset);
    if (own > 0 && output + starts[me] != input) {
      copy(output + starts[me] + from, input + from, own);
    }
    context.sequence.wait_for(team, offered);
    for (size_t distance = 1; distance < team.size(); ++distance) {
      const size_t k = (me + distance) % team.size();
      if (from < job.bytes[k]) {
        copy(output + starts[k] + from, context.sequence.data_of(team[k], window),
             std::min(chunk, job.bytes[k] - from));
      }
    }
    context.sequence.lend(window, team, context.sequence.publish(team));
  }
  if (home) {
    context.sequence.settle(window ^ 1);  // the input, which others read, is its owner's again
  }
}

}  // namespace farandole::collective
