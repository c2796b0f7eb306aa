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

void BucketRunner::choose(const Group& group, Pending& pending) const {
  const auto need = need_of(pending.request.signature);
  if (!need) {
    pending.choice = {nullptr, kNone, "agreement is all it takes"};
    return;
  }
  const backend::Selection selection = backend::select(rows_, *need, group, mesh_.hosts(), formed_.contains(group.id));
  const auto found = std::ranges::find(instances_, selection.row, &Instance::row);
  if (found == instances_.end()) {
    throw base::Error(Code::kInternal, backend::refusal_of(rows_, *need));  // submit() has refused it
  }
  pending.backend = found->backend.get();
  take_from_device(pending, selection.through_host);
  pending.choice = pending.backend->choose(group, *need);
}

std::vector<BucketRunner::Bucket> BucketRunner::plan(std::vector<Runnable>& runnables) const {
  std::vector<Fusible> fusibles;
  fusibles.reserve(runnables.size());
  for (const Runnable& runnable : runnables) {
    const Pending& pending = *runnable.pending;
    const Signature& signature = pending.request.signature;
    Fusible& fusible = fusibles.emplace_back(Fusible{signature.bytes(), {}, true});
    if (pending.backend != nullptr && row_of(signature.kind).merges && pending.choice.algorithm->fusible) {
      fusible.alone = false;
      fusible.key = fusion_key(signature, pending.backend, pending.choice.index);
    }
  }
  std::vector<Bucket> buckets;
  for (const std::vector<size_t>& indices : plan_buckets(fusibles, knobs_.fusion_threshold)) {
    Bucket& bucket = buckets.emplace_back();
    for (const size_t index : indices) {
      bucket.push_back(&runnables[index]);
    }
  }
  return buckets;
}

void BucketRunner::run(const Group& group, std::vector<Runnable> runnables, int64_t agreed_ns,
                       std::vector<std::unique_ptr<Pending>>& unfinished) {
  try {
    for (const Runnable& runnable : runnables) {
      if (!runnable.pending->is_staged) {
        choose(group, *runnable.pending);
      }
    }
    if (runnables.size() == 1) {  // without a plan: small calls usually consist of one request
      Runnable* const only = &runnables.front();
      recorder_.number_bucket({&only, 1}, agreed_ns);
      run_bucket(group, {&only, 1});
      return;
    }
    const std::vector<Bucket> buckets = plan(runnables);
    for (const Bucket& bucket : buckets) {
      recorder_.number_bucket(bucket, agreed_ns);
    }
    for (const Bucket& bucket : buckets) {
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
  const Pending& first = *bucket.front()->pending;
  const Signature& signature = first.request.signature;
  if (const auto make_job = row_of(signature.kind).make_job) {
    // Only the two members of a transfer are here.
    const std::optional<Group> pair =
        signature.kind == Kind::kTransfer ? std::optional(pair_of(group, signature, mesh_.rank())) : std::nullopt;
    const Group& members = pair ? *pair : group;
    mark = first.backend->run(members, first.choice, make_job(members, bucket, copied_), marks_of(bucket));
  }
  const int64_t ended_ns = recorder_.end_bucket(started, bucket, std::exchange(copied_, {}));
  for (Runnable* runnable : bucket) {
    complete(std::move(runnable->pending), mark, ended_ns);
  }
  outcomes_.announce();
}

// A request in device memory is done when the GPU has the result.
void BucketRunner::complete(std::unique_ptr<Pending> pending, const device::MarkPointer& mark, int64_t at_ns) {
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
    outcomes_.complete(std::move(pending), {}, at_ns);
  }
}

void BucketRunner::stage(const Group& group, Pending& pending) {
  const Signature& signature = pending.request.signature;
  if (signature.kind != Kind::kAllreduce) {
    return;
  }
  choose(group, pending);
  pending.is_staged =
      pending.backend->stage(group, pending.choice, kinds::allreduce_job_of(pending.request, group.size(), copied_));
}

void BucketRunner::reduce_staged(const Group& group, const Pending& pending) {
  if (!pending.is_staged) {
    return;
  }
  pending.backend->reduce_staged(group, pending.choice,
                                 kinds::allreduce_job_of(pending.request, group.size(), copied_));
}

}  // namespace farandole::engine
