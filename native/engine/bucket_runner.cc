#include "engine/bucket_runner.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "engine/fusion.h"
#include "engine/kinds/reduction.h"

namespace farandole::engine {
namespace {

using base::Code;
using collective::Group;

// The group of the two members of a transfer, of which this rank is one.
Group pair_of(const Group& group, const Signature& signature, int rank) {
  Group pair{group.id, {std::min(signature.root, signature.peer), std::max(signature.root, signature.peer)}};
  pair.index = pair.index_of(rank);
  return pair;
}

// A request that was made before its backend was formed, and is agreed on after that, has a mirror that it does not
// need.
void take_from_device(Pending& pending, bool through_host) {
  if (pending.mirror != nullptr && !through_host) {
    pending.mirror->withdraw(pending.request);
    pending.mirror.reset();
  }
}

// The marks that a bucket in device memory must wait for.
std::vector<device::MarkPointer> marks_of(std::span<Runnable* const> bucket) {
  std::vector<device::MarkPointer> marks;
  for (const Runnable* runnable : bucket) {
    const Pending& pending = *runnable->pending;
    if (pending.gpu() != nullptr && (marks.empty() || marks.back() != pending.ready)) {
      marks.push_back(pending.ready);
    }
  }
  return marks;
}

}  // namespace

BucketRunner::BucketRunner(std::span<const backend::Row* const> rows, const transport::Mesh& mesh,
                           const backend::World& world, Recorder& recorder, Outcomes& outcomes)
    : rows_(rows), mesh_(mesh), recorder_(recorder), outcomes_(outcomes), knobs_(world.tuning.knobs) {
  backend::World known = world;
  for (const backend::Row* const row : rows) {
    const bool takes_host = (row->capabilities.memory & bit_of(backend::MemoryKind::kHost)) != 0;
    if (row->absent == nullptr && (takes_host || world.gpu != nullptr)) {
      instances_.push_back({row, row->make(known)});
      if (known.host == nullptr) {
        known.host = instances_.front().backend.get();  // host memory comes first
      }
    }
  }
  set_knobs(world.tuning.knobs);
}

void BucketRunner::set_knobs(const collective::Knobs& knobs) {
  knobs_ = knobs;
  for (const Instance& instance : instances_) {
    knobs_ = instance.backend->set_knobs(knobs_);
  }
}

void BucketRunner::begin(uint32_t decision) {
  for (const Instance& instance : instances_) {
    instance.backend->begin(decision);
  }
}

void BucketRunner::revoke() noexcept {
  for (const Instance& instance : instances_) {
    instance.backend->revoke();
  }
}

backend::Formation* BucketRunner::formation() const noexcept {
  for (const Instance& instance : instances_) {
    if (backend::Formation* const formation = instance.backend->formation(); formation != nullptr) {
      return formation;
    }
  }
  return nullptr;
}

BucketRunner::Selected BucketRunner::select(const Group& group, const backend::Need& need) const {
  const backend::Selection selection = backend::select(rows_, need, group, mesh_.hosts(), formed_.contains(group.id));
  const auto found = std::ranges::find(instances_, selection.row, &Instance::row);
  if (found == instances_.end()) {
    throw base::Error(Code::kInternal, backend::refusal_of(rows_, need));  // submit() has refused it
  }
  return {*found->backend, selection.through_host};
}

std::vector<std::vector<size_t>> BucketRunner::plan(const Group& group, std::vector<Runnable>& runnables) const {
  std::vector<Fusible> fusibles;
  fusibles.reserve(runnables.size());
  for (Runnable& runnable : runnables) {
    const Signature& signature = runnable.pending->request.signature;
    Fusible fusible{signature.bytes(), {}, true};
    if (const auto need = need_of(signature)) {
      const Selected selected = select(group, *need);
      runnable.backend = &selected.backend;
      take_from_device(*runnable.pending, selected.through_host);
      runnable.choice = runnable.backend->choose(group, *need);
      fusible.alone = !row_of(signature.kind).merges || !runnable.choice.algorithm->fusible;
    } else {
      runnable.choice = {nullptr, kNone, "agreement is all it takes"};
    }
    if (!fusible.alone && runnables.size() > 1) {
      fusible.key = fusion_key(signature, runnable.backend, runnable.choice.index);
    }
    fusibles.push_back(fusible);
  }
  if (runnables.size() == 1) {
    return {{0}};  // without a table: small calls usually consist of one request
  }
  return plan_buckets(fusibles, knobs_.fusion_threshold);
}

void BucketRunner::run(const Group& group, std::vector<Runnable> runnables,
                       std::vector<std::unique_ptr<Pending>>& unfinished) {
  try {
    const auto buckets = plan(group, runnables);
    recorder_.number_buckets(buckets, runnables);
    for (const std::vector<size_t>& indices : buckets) {
      std::vector<Runnable*> bucket;
      for (const size_t index : indices) {
        bucket.push_back(&runnables[index]);
      }
      run_bucket(group, bucket);
    }
  } catch (...) {
    // Those that ran are done; the others go back, to fail with the world.
    for (Runnable& runnable : runnables) {
      if (runnable.pending != nullptr) {
        unfinished.push_back(std::move(runnable.pending));
      }
    }
    throw;
  }
}

void BucketRunner::run_bucket(const Group& group, std::span<Runnable* const> bucket) {
  const Event started = recorder_.begin_bucket(group, bucket);
  device::MarkPointer mark;
  const Runnable& first = *bucket.front();
  const Signature& signature = first.pending->request.signature;
  if (const auto make_job = row_of(signature.kind).make_job) {
    // Only the two members of a transfer are here.
    const std::optional<Group> pair =
        signature.kind == Kind::kTransfer ? std::optional(pair_of(group, signature, mesh_.rank())) : std::nullopt;
    const Group& members = pair ? *pair : group;
    mark = first.backend->run(members, first.choice, make_job(members, bucket, copied_), marks_of(bucket));
  }
  recorder_.end_bucket(started, bucket, std::exchange(copied_, {}));
  for (Runnable* runnable : bucket) {
    complete(std::move(runnable->pending), mark);
  }
  outcomes_.announce();
}

// A request in device memory is done when the GPU has the result.
void BucketRunner::complete(std::unique_ptr<Pending> pending, const device::MarkPointer& mark) {
  if (mark != nullptr && pending->completion != nullptr) {
    outcomes_.launch(std::move(pending), mark);
    return;
  }
  const bool has_own_output =
      pending->mirror != nullptr && pending->mirror->has_output() && pending->completion->data.empty();
  if (has_own_output) {
    device::MarkPointer delivered = pending->mirror->deliver();
    outcomes_.launch(std::move(pending), std::move(delivered));
  } else {
    outcomes_.complete(std::move(pending), Code::kOk, "", -1);
  }
}

void BucketRunner::stage(const Group& group, Pending& pending) {
  const Signature& signature = pending.request.signature;
  if (signature.kind != Kind::kAllreduce) {
    return;
  }
  const backend::Need need = *need_of(signature);
  backend::Backend& backend = select(group, need).backend;
  pending.is_staged = backend.stage(group, backend.choose(group, need),
                                    kinds::allreduce_job_of(pending.request, group.size(), copied_));
}

void BucketRunner::reduce_staged(const Group& group, const Pending& pending) {
  if (!pending.is_staged) {
    return;
  }
  const backend::Need need = *need_of(pending.request.signature);
  backend::Backend& backend = select(group, need).backend;
  backend.reduce_staged(group, backend.choose(group, need),
                        kinds::allreduce_job_of(pending.request, group.size(), copied_));
}

}  // namespace farandole::engine
