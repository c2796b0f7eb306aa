// Alltoall: every rank sends rows to every rank.
#include <numeric>

#include "engine/kinds/checks.h"
#include "engine/kinds/given_output.h"

namespace farandole::engine::kinds {
namespace {

using collective::Group;

void check_splits(const Request& request, const Group& group) {
  const int64_t rows = request.signature.shape[0];
  const std::string name = "alltoall '" + request.name + "': ";
  if (request.splits.empty()) {
    if (rows % static_cast<int64_t>(group.size()) != 0) {
      refuse(name + "splits not provided, but first dimension of tensor (" + std::to_string(rows) +
             ") is not divisible by the number of workers (" + std::to_string(group.size()) + ").");
    }
    return;
  }
  if (request.splits.size() != group.size()) {
    refuse(name + "Number of entries in splits does not equal number of workers: " +
           std::to_string(request.splits.size()) + " entries for " + std::to_string(group.size()) + " workers.");
  }
  int64_t left = rows;
  for (const int64_t split : request.splits) {
    if (split < 0) {
      refuse(name + "splits cannot be negative: " + format_shape(request.splits) + ".");
    }
    if (split > left) {
      refuse(name + "Sum of splits entries is greater than the first dimension of tensor: " +
             format_shape(request.splits) + " for " + std::to_string(rows) + " rows.");
    }
    left -= split;
  }
}

void check(const Request& request, const Group& group, int) {
  check_has_rows(request);
  check_splits(request, group);
}

collective::Job make_job(const Group& group, std::span<Runnable* const> bucket, collective::Copied&) {
  Pending& pending = *bucket.front()->pending;
  const Request& request = pending.request;
  collective::AlltoallJob job;
  job.input = request.input;
  job.rows = request.splits;
  if (job.rows.empty()) {
    job.rows.assign(group.size(), request.signature.shape[0] / static_cast<int64_t>(group.size()));
  }
  job.row_bytes = request.signature.row_bytes();
  job.output = [&pending, &request, own = job.rows.front(),
                row_bytes = job.row_bytes](const std::vector<int64_t>& received) -> void* {
    pending.completion->sizes = received;
    if (request.splits.empty() && fits_given_output(request, received, own)) {
      return request.output;
    }
    const int64_t rows = std::accumulate(received.begin(), received.end(), int64_t{0});
    return memory_for_rows(pending, static_cast<size_t>(rows) * row_bytes);
  };
  return job;
}

}  // namespace

constexpr KindRow kAlltoall = {
    .name = "alltoall",
    .has = kTensor,
    .rows = Rows::kOwn,
    .memory = Memory::kInput,
    .output_bytes = [](const Request& request,
                       const Group&) { return request.splits.empty() ? request.signature.bytes() : 0; },
    .operation = [](const Options&) { return collective::Operation::kAlltoall; },
    .check = check,
    .make_job = make_job};

}  // namespace farandole::engine::kinds
