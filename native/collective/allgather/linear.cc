// Allgather over links: everyone sends its part to everyone, beginning with the next member so that not all begin
// with the same one.
#include <cstring>
#include <numeric>

#include "collective/allgather/allgather.h"

namespace farandole::collective {

void allgather_linear(Context& context, const AllgatherJob& job) {
  const std::vector<int>& team = context.group.members;
  const auto me = static_cast<size_t>(context.group.index);
  std::vector<size_t> starts(team.size());
  std::exclusive_scan(job.bytes.begin(), job.bytes.end(), starts.begin(), size_t{0});
  auto* const output = static_cast<std::byte*>(job.output);
  const std::span own(static_cast<const std::byte*>(job.input), job.bytes[me]);

  for (size_t distance = 1; distance < team.size(); ++distance) {
    const size_t to = (me + distance) % team.size();
    const size_t from = (me + team.size() - distance) % team.size();
    context.frames.send(team[to], own);
    context.frames.recv(team[from], std::span(output + starts[from], job.bytes[from]));
  }
  if (!own.empty() && output + starts[me] != own.data()) {
    std::memcpy(output + starts[me], own.data(), own.size());
  }
  context.frames.flush();
}

}  // namespace farandole::collective
