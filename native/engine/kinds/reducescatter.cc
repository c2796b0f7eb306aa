// Reducescatter: every rank gets its rows of the reduction of all ranks' tensors.
#include "engine/kinds/checks.h"
#include "engine/kinds/reduction.h"

namespace farandole::engine::kinds {
namespace {

using collective::Group;

int64_t rows_of(const Signature& signature, size_t members, size_t index) {
  const auto n = static_cast<int64_t>(members);
  return signature.shape[0] / n + (static_cast<int64_t>(index) < signature.shape[0] % n ? 1 : 0);
}

void check(const Request& request, const Group& group, int) {
  const Signature& signature = request.signature;
  check_reducible(request);
  if (signature.shape.empty()) {
    refuse("Reducescatter does not support scalar inputs: '" + request.name + "' has no dimension to cut.");
  }
  check_is_not_adasum(request);
  if (rows_of(signature, group.size(), static_cast<size_t>(group.index)) * signature.row_elements() > 0 &&
      request.output == nullptr) {
    refuse("reducescatter '" + request.name + "': this rank gets rows, but there is no memory for them.");
  }
}

collective::Job make_job(const Group& group, std::span<Runnable* const> bucket, collective::Copied&) {
  const Request& request = bucket.front()->pending->request;
  auto job = reduction_job<collective::ReducescatterJob>(request.signature, group.size());
  job.input = request.input;
  job.output = request.output;
  for (size_t k = 0; k < group.size(); ++k) {
    job.counts.push_back(
        static_cast<size_t>(rows_of(request.signature, group.size(), k) * request.signature.row_elements()));
  }
  return job;
}

size_t output_bytes(const Request& request, const Group& group) {
  const int64_t rows = rows_of(request.signature, group.size(), static_cast<size_t>(group.index));
  return static_cast<size_t>(rows) * request.signature.row_bytes();
}

}  // namespace

constexpr KindRow kReducescatter = {.name = "reducescatter",
                                    .has = kTensor | kReduction,
                                    .memory = Memory::kInput,  // a member may get no rows
                                    .shares = true,
                                    .output_bytes = output_bytes,
                                    .operation = [](const Options&) { return collective::Operation::kReducescatter; },
                                    .check = check,
                                    .make_job = make_job};

}  // namespace farandole::engine::kinds
