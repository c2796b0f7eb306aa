// Alltoall over links: first every member tells every other how many rows will come, then it sends them, beginning with
// the next member so that not all begin with the same one.
#include <cstring>
#include <numeric>
#include <vector>

#include "collective/alltoall/alltoall.h"

namespace farandole::collective {
namespace {

std::vector<int64_t> exchange_row_counts(Context& context, const std::vector<int64_t>& rows) {
  const std::vector<int>& team = context.group.members;
  const auto me = static_cast<size_t>(context.group.index);
  std::vector<int64_t> received(team.size());
  received[me] = rows[me];
  for (size_t k = 0; k < team.size(); ++k) {
    if (k != me) {
      context.frames.send(team[k], std::as_bytes(std::span(&rows[k], 1)));
      context.frames.recv(team[k], std::as_writable_bytes(std::span(&received[k], 1)));
    }
  }
  context.frames.flush();
  return received;
}

}  // namespace

void alltoall_pairwise(Context& context, const AlltoallJob& job) {
  const std::vector<int>& team = context.group.members;
  const auto me = static_cast<size_t>(context.group.index);
  const std::vector<int64_t> received = exchange_row_counts(context, job.rows);
  const auto bytes_of = [&](int64_t rows) { return static_cast<size_t>(rows) * job.row_bytes; };
  std::vector<size_t> sent_from(team.size());
  std::vector<size_t> received_at(team.size());
  std::transform_exclusive_scan(job.rows.begin(), job.rows.end(), sent_from.begin(), size_t{0}, std::plus<>{},
                                bytes_of);
  std::transform_exclusive_scan(received.begin(), received.end(), received_at.begin(), size_t{0}, std::plus<>{},
                                bytes_of);
  const auto* const input = static_cast<const std::byte*>(job.input);
  auto* const output = static_cast<std::byte*>(job.output(received));

  for (size_t distance = 1; distance < team.size(); ++distance) {
    const size_t to = (me + distance) % team.size();
    const size_t from = (me + team.size() - distance) % team.size();
    context.frames.send(team[to], std::span(input + sent_from[to], bytes_of(job.rows[to])));
    context.frames.recv(team[from], std::span(output + received_at[from], bytes_of(received[from])));
  }
  if (const size_t own = bytes_of(job.rows[me]); own > 0) {
    std::memcpy(output + received_at[me], input + sent_from[me], own);
  }
  context.frames.flush();
}

}  // namespace farandole::collective
