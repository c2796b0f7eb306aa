// Reduce: one rank gets the reduction of all ranks' tensors, and the others keep theirs.
#include "engine/kinds/checks.h"
#include "engine/kinds/reduction.h"

namespace farandole::engine::kinds {
namespace {

using collective::Group;

void check(const Request& request, const Group& group, int) {
  check_reducible(request);
  check_is_not_adasum(request);
  check_root(request, group);
}

collective::Job make_job(const Group& group, std::span<Runnable* const> bucket, collective::Copied&) {
  const Request& request = bucket.front()->pending->request;
  auto job = reduction_job<collective::ReduceJob>(request.signature, group.size());
  job.input = request.input;
  job.output = request.output;
  job.count = static_cast<size_t>(request.signature.elements());
  job.root_index = group.index_of(request.signature.root);
  return job;
}

}  // namespace

constexpr KindRow kReduce = {.name = "reduce",
                             .has = kTensor | kReduction | kRoot,
                             .memory = Memory::kInputAndOutput,
                             .operation = [](const Options&) { return collective::Operation::kReduce; },
                             .check = check,
                             .make_job = make_job};

}  // namespace farandole::engine::kinds
