// Allgather: every rank gets the rows of all ranks.
#include "engine/kinds/checks.h"
#include "engine/kinds/given_output.h"

namespace farandole::engine::kinds {
namespace {

collective::Job make_job(const collective::Group&, std::span<Runnable* const> bucket, collective::Copied&) {
  const Runnable& runnable = *bucket.front();
  const Request& request = runnable.pending->request;
  const size_t row = request.signature.row_bytes();
  collective::AllgatherJob job;
  job.input = request.input;
  size_t total = 0;
  for (const int64_t rows : runnable.sizes) {
    job.bytes.push_back(static_cast<size_t>(rows) * row);
    total += job.bytes.back();
  }
  Completion& completion = *runnable.pending->completion;
  completion.sizes = runnable.sizes;
  job.output = request.output;
  if (!fits_given_output(request, runnable.sizes, request.signature.shape[0])) {
    job.output = memory_for_rows(*runnable.pending, total);
  }
  return job;
}

}  // namespace

constexpr KindRow kAllgather = {
    .name = "allgather",
    .has = kTensor,
    .rows = Rows::kAgreed,
    .memory = Memory::kInput,
    .output_bytes = [](const Request& request,
                       const collective::Group& group) { return request.signature.bytes() * group.size(); },
    .operation = [](const Options&) { return collective::Operation::kAllgather; },
    .check = [](const Request& request, const collective::Group&, int) { check_has_rows(request); },
    .make_job = make_job};

}  // namespace farandole::engine::kinds
