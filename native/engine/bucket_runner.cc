#include "engine/bucket_runner.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "engine/fusion.h"

namespace farandole::engine {
namespace {

using base::Code;
using collective::Group;

// Whether a gathered result can go to the caller's memory, which has room for equal parts only.
bool fits_given_output(const Request& request, const std::vector<int64_t>& sizes, int64_t part) {
  return request.output != nullptr && std::ranges::all_of(sizes, [&](int64_t rows) { return rows == part; });
}

// Averages and Adasum are sums to the algorithms: the one divides, the other has an algorithm of its own.
reduce::Op reduction_of(ReduceOp op) {
  return op == ReduceOp::kAverage || op == ReduceOp::kAdasum ? reduce::Op::kSum : static_cast<reduce::Op>(op);
}

// A job's dtype, operation and factors.
template <typename Job>
Job reduction_job(const Signature& signature, size_t members) {
  Job job;
  job.dtype = signature.dtype;
  job.op = reduction_of(signature.op);
  job.prescale.factor = signature.prescale;
  job.postscale.factor = signature.postscale;
  job.postscale.divisor = signature.op == ReduceOp::kAverage ? static_cast<int64_t>(members) : 1;
  return job;
}

collective::Piece piece_of(const Request& request) {
  return {request.input, request.output, static_cast<size_t>(request.signature.elements())};
}

// The members share the rows as evenly as can be; the first ones get one more.
int64_t even_share(int64_t rows, size_t members, size_t index) {
  const auto n = static_cast<int64_t>(members);
  return rows / n + (static_cast<int64_t>(index) < rows % n ? 1 : 0);
}

// The group of the two members of a transfer, of which this rank is one.
Group pair_of(const Group& group, const Signature& signature, int rank) {
  Group pair{group.id, {std::min(signature.root, signature.peer), std::max(signature.root, signature.peer)}};
  pair.index = pair.index_of(rank);
  return pair;
}

using Bucket = std::span<Runnable* const>;

collective::Job compressed_job(const Group& group, Bucket bucket) {
  const Signature& signature = bucket.front()->pending->request.signature;
  collective::CompressedJob job{
      reduction_job<collective::AllreduceJob>(signature, group.size()), signature.compression_ratio, {}};
  for (const Runnable* runnable : bucket) {
    const Request& request = runnable->pending->request;
    job.reduction.pieces.push_back(piece_of(request));
    job.residuals.push_back(request.residual);
  }
  return job;
}

collective::Job allreduce_job(const Group& group, Bucket bucket, collective::Copied& copied) {
  const Signature& signature = bucket.front()->pending->request.signature;
  if (signature.compression != Compression::kNone) {
    return compressed_job(group, bucket);
  }
  auto job = reduction_job<collective::AllreduceJob>(signature, group.size());
  for (const Runnable* runnable : bucket) {
    job.pieces.push_back(piece_of(runnable->pending->request));
  }
  job.is_staged = bucket.front()->pending->is_staged;
  job.copied = &copied;
  return job;
}

collective::Job allgather_job(const Group&, Bucket bucket, collective::Copied&) {
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
    completion.data.resize(total);
    job.output = completion.data.data();
  }
  return job;
}

// Of a transfer, too, whose group has two members.
collective::Job broadcast_job(const Group& group, Bucket bucket, collective::Copied&) {
  const Request& request = bucket.front()->pending->request;
  const Signature& signature = request.signature;
  collective::BroadcastJob job;
  job.input = request.input;
  job.output = request.output;
  job.bytes = signature.bytes();
  job.root_index = group.index_of(signature.root);
  if (signature.kind == Kind::kTransfer && group.index == job.root_index) {
    // The root's output is its input, to which nothing is written.
    job.output = const_cast<void*>(request.input);
  }
  return job;
}

collective::Job alltoall_job(const Group& group, Bucket bucket, collective::Copied&) {
  const Request& request = bucket.front()->pending->request;
  Completion& completion = *bucket.front()->pending->completion;
  collective::AlltoallJob job;
  job.input = request.input;
  job.rows = request.splits;
  if (job.rows.empty()) {
    job.rows.assign(group.size(), request.signature.shape[0] / static_cast<int64_t>(group.size()));
  }
  job.row_bytes = request.signature.row_bytes();
  job.output = [&request, &completion, own = job.rows.front(),
                row_bytes = job.row_bytes](const std::vector<int64_t>& received) -> void* {
    completion.sizes = received;
    if (request.splits.empty() && fits_given_output(request, received, own)) {
      return request.output;
    }
    const int64_t rows = std::accumulate(received.begin(), received.end(), int64_t{0});
    completion.data.resize(static_cast<size_t>(rows) * row_bytes);
    return completion.data.data();
  };
  return job;
}

collective::Job reducescatter_job(const Group& group, Bucket bucket, collective::Copied&) {
  const Request& request = bucket.front()->pending->request;
  auto job = reduction_job<collective::ReducescatterJob>(request.signature, group.size());
  job.input = request.input;
  job.output = request.output;
  for (size_t k = 0; k < group.size(); ++k) {
    job.counts.push_back(static_cast<size_t>(even_share(request.signature.shape[0], group.size(), k) *
                                             request.signature.row_elements()));
  }
  return job;
}

// Makes the job of a bucket for the members of a group. It refers to the bucket's requests.
using MakeJob = collective::Job (*)(const Group& group, Bucket bucket, collective::Copied& copied);

// One row for each kind of request that moves data. The others are done when they are agreed on.
MakeJob maker_of(Kind kind) {
  static constexpr std::array<std::pair<Kind, MakeJob>, 6> kMakers = {{
      {Kind::kAllreduce, allreduce_job},
      {Kind::kAllgather, allgather_job},
      {Kind::kBroadcast, broadcast_job},
      {Kind::kAlltoall, alltoall_job},
      {Kind::kReducescatter, reducescatter_job},
      {Kind::kTransfer, broadcast_job},
  }};
  const auto* const row = std::ranges::find(kMakers, kind, &std::pair<Kind, MakeJob>::first);
  return row == kMakers.end() ? nullptr : row->second;
}

}  // namespace

BucketRunner::BucketRunner(std::span<const backend::Row* const> rows, const transport::Mesh& mesh,
                           const backend::World& world, Recorder& recorder, Outcomes& outcomes)
    : rows_(rows), mesh_(mesh), recorder_(recorder), outcomes_(outcomes), knobs_(world.tuning.knobs) {
  for (const backend::Row* const row : rows) {
    if (row->absent == nullptr) {
      instances_.push_back({row, row->make(world)});
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

backend::Backend& BucketRunner::select(const Group& group, const backend::Need& need) const {
  const backend::Selection selection = backend::select(rows_, need, group, mesh_.hosts());
  const auto found = std::ranges::find(instances_, selection.row, &Instance::row);
  if (found == instances_.end()) {
    throw base::Error(Code::kInternal, backend::refusal_of(rows_, need));  // submit() has refused it
  }
  return *found->backend;
}

std::vector<std::vector<size_t>> BucketRunner::plan(const Group& group, std::vector<Runnable>& runnables) const {
  std::vector<Fusible> fusibles;
  fusibles.reserve(runnables.size());
  for (Runnable& runnable : runnables) {
    const Signature& signature = runnable.pending->request.signature;
    Fusible fusible{signature.bytes(), {}, true};
    if (const auto need = need_of(signature)) {
      runnable.backend = &select(group, *need);
      runnable.choice = runnable.backend->choose(group, *need);
      fusible.alone = signature.kind != Kind::kAllreduce || !runnable.choice.algorithm->fusible;
    } else {
      runnable.choice = {nullptr, kNone, "agreement is all it takes"};
    }
    if (!fusible.alone) {
      fusible.key = fusion_key(signature, runnable.backend, runnable.choice.index);
    }
    fusibles.push_back(fusible);
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
  if (const MakeJob make = maker_of(bucket.front()->pending->request.signature.kind)) {
    const Runnable& first = *bucket.front();
    const Signature& signature = first.pending->request.signature;
    // Only the two members of a transfer are here.
    const std::optional<Group> pair =
        signature.kind == Kind::kTransfer ? std::optional(pair_of(group, signature, mesh_.rank())) : std::nullopt;
    const Group& members = pair ? *pair : group;
    first.backend->run(members, first.choice, make(members, bucket, copied_));
  }
  recorder_.end_bucket(started, bucket, std::exchange(copied_, {}));
  for (Runnable* runnable : bucket) {
    outcomes_.complete(std::move(runnable->pending), Code::kOk, "", -1);
  }
  outcomes_.announce();
}

void BucketRunner::stage(const Group& group, Pending& pending) {
  const Signature& signature = pending.request.signature;
  if (signature.kind != Kind::kAllreduce) {
    return;
  }
  const backend::Need need = *need_of(signature);
  backend::Backend& backend = select(group, need);
  auto job = reduction_job<collective::AllreduceJob>(signature, group.size());
  job.pieces.push_back(piece_of(pending.request));
  job.copied = &copied_;
  pending.is_staged = backend.stage(group, backend.choose(group, need), job);
}

}  // namespace farandole::engine
