// The engine thread: running what was agreed, bucket by bucket, and saying what became of it.
#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "engine/engine.h"
#include "engine/fusion.h"

namespace farandole::engine {
namespace {

using base::Code;
using collective::Group;

// Requests that may share a bucket have equal keys: same type, operation, factors, compression, algorithm.
uint64_t fusion_key(const Signature& signature, uint32_t algorithm) {
  uint64_t key = static_cast<uint64_t>(signature.dtype) | static_cast<uint64_t>(signature.op) << 8 |
                 static_cast<uint64_t>(algorithm) << 16;
  for (const double factor : {signature.prescale, signature.postscale, signature.compression_ratio}) {
    key = key * 0x9e3779b97f4a7c15U ^ std::bit_cast<uint64_t>(factor);
  }
  return key;
}

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

}  // namespace

collective::Choice Engine::choose_allreduce(const Group& group, const Signature& signature) const {
  if (signature.compression != Compression::kNone) {
    return collective::choose_compressed(name_of(signature.compression));
  }
  return signature.op == ReduceOp::kAdasum ? collective::choose_adasum()
                                           : backend_->choose_allreduce(group, signature.bytes());
}

void Engine::run_all(const Group& group, std::vector<Runnable> runnables) {
  std::vector<Fusible> plan;
  plan.reserve(runnables.size());
  for (Runnable& runnable : runnables) {
    const Signature& signature = runnable.pending->request.signature;
    Fusible fusible{signature.bytes(), 0, true};
    switch (signature.kind) {
      case Kind::kAllreduce:
        runnable.choice = choose_allreduce(group, signature);
        fusible.alone = !runnable.choice.algorithm->fusible;
        fusible.key = fusion_key(signature, runnable.choice.index);
        break;
      case Kind::kAllgather:
        runnable.choice = backend_->choose_allgather(group);
        break;
      case Kind::kBroadcast:
        runnable.choice = backend_->choose_broadcast(group);
        break;
      case Kind::kAlltoall:
        runnable.choice = backend_->choose_alltoall(group);
        break;
      case Kind::kReducescatter:
        runnable.choice = backend_->choose_reducescatter(group);
        break;
      case Kind::kTransfer:
        runnable.choice = collective::choose_transfer();
        break;
      default:
        runnable.choice = {nullptr, kNone, "agreement is all it takes"};
    }
    plan.push_back(fusible);
  }
  const auto buckets = plan_buckets(plan, backend_->knobs().fusion_threshold);
  number_buckets(buckets, runnables);
  for (const std::vector<size_t>& indices : buckets) {
    std::vector<Runnable*> bucket;
    for (const size_t index : indices) {
      bucket.push_back(&runnables[index]);
    }
    try {
      run_bucket(group, bucket);
    } catch (...) {
      // Those that ran are done; the others go back, to fail with the world.
      for (Runnable& runnable : runnables) {
        if (runnable.pending != nullptr) {
          unfinished_.push_back(std::move(runnable.pending));
        }
      }
      throw;
    }
  }
}

void Engine::run_bucket(const Group& group, const std::vector<Runnable*>& bucket) {
  const Kind kind = bucket.front()->pending->request.signature.kind;
  const Event started = begin_bucket(group, bucket);
  switch (kind) {
    case Kind::kAllreduce:
      if (bucket.front()->choice.algorithm->compressed != nullptr) {
        run_compressed(group, bucket);
      } else {
        run_allreduce(group, bucket);
      }
      break;
    case Kind::kAllgather:
      run_allgather(group, *bucket.front());
      break;
    case Kind::kBroadcast:
      run_broadcast(group, *bucket.front());
      break;
    case Kind::kAlltoall:
      run_alltoall(group, *bucket.front());
      break;
    case Kind::kReducescatter:
      run_reducescatter(group, *bucket.front());
      break;
    case Kind::kTransfer:
      run_transfer(group, *bucket.front());
      break;
    default:
      break;
  }
  end_bucket(started, bucket);
  for (Runnable* runnable : bucket) {
    complete(std::move(runnable->pending), Code::kOk, "", -1);
  }
  announce_completions();
}

void Engine::stage(Pending& pending) {
  const Signature& signature = pending.request.signature;
  if (signature.kind != Kind::kAllreduce) {
    return;
  }
  const Group& group = memberships_.at(pending.request.group).group;
  const collective::Choice choice = choose_allreduce(group, signature);
  auto job = reduction_job<collective::AllreduceJob>(signature, group.size());
  job.pieces.push_back(piece_of(pending.request));
  pending.is_staged = backend_->stage(group, choice, job);
}

void Engine::run_allreduce(const Group& group, const std::vector<Runnable*>& bucket) {
  const Signature& signature = bucket.front()->pending->request.signature;
  auto job = reduction_job<collective::AllreduceJob>(signature, group.size());
  for (const Runnable* runnable : bucket) {
    job.pieces.push_back(piece_of(runnable->pending->request));
  }
  job.is_staged = bucket.front()->pending->is_staged;
  backend_->run(group, bucket.front()->choice, job);
}

void Engine::run_compressed(const Group& group, const std::vector<Runnable*>& bucket) {
  const Signature& signature = bucket.front()->pending->request.signature;
  collective::CompressedJob job{
      reduction_job<collective::AllreduceJob>(signature, group.size()), signature.compression_ratio, {}};
  for (const Runnable* runnable : bucket) {
    const Request& request = runnable->pending->request;
    job.reduction.pieces.push_back(piece_of(request));
    job.residuals.push_back(request.residual);
  }
  backend_->run(group, bucket.front()->choice, job);
}

void Engine::run_allgather(const Group& group, Runnable& runnable) {
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
  backend_->run(group, runnable.choice, job);
}

void Engine::run_broadcast(const Group& group, Runnable& runnable) {
  const Request& request = runnable.pending->request;
  collective::BroadcastJob job;
  job.input = request.input;
  job.output = request.output;
  job.bytes = request.signature.bytes();
  job.root_index = group.index_of(request.signature.root);
  backend_->run(group, runnable.choice, job);
}

void Engine::run_alltoall(const Group& group, Runnable& runnable) {
  const Request& request = runnable.pending->request;
  collective::AlltoallJob job;
  job.input = request.input;
  job.rows = request.splits;
  if (job.rows.empty()) {
    job.rows.assign(group.size(), request.signature.shape[0] / static_cast<int64_t>(group.size()));
  }
  job.row_bytes = request.signature.row_bytes();
  job.output = [&](const std::vector<int64_t>& received) -> void* {
    Completion& completion = *runnable.pending->completion;
    completion.sizes = received;
    if (request.splits.empty() && fits_given_output(request, received, job.rows.front())) {
      return request.output;
    }
    const int64_t rows = std::accumulate(received.begin(), received.end(), int64_t{0});
    completion.data.resize(static_cast<size_t>(rows) * job.row_bytes);
    return completion.data.data();
  };
  backend_->run(group, runnable.choice, job);
}

void Engine::run_reducescatter(const Group& group, Runnable& runnable) {
  const Request& request = runnable.pending->request;
  auto job = reduction_job<collective::ReducescatterJob>(request.signature, group.size());
  job.input = request.input;
  job.output = request.output;
  for (size_t k = 0; k < group.size(); ++k) {
    job.counts.push_back(static_cast<size_t>(even_share(request.signature.shape[0], group.size(), k) *
                                             request.signature.row_elements()));
  }
  backend_->run(group, runnable.choice, job);
}

// Only these two members are here.
void Engine::run_transfer(const Group& group, Runnable& runnable) {
  const Request& request = runnable.pending->request;
  const Signature& signature = request.signature;
  Group pair{group.id, {std::min(signature.root, signature.peer), std::max(signature.root, signature.peer)}};
  pair.index = pair.index_of(mesh_->rank());
  collective::BroadcastJob job;
  job.input = request.input;
  // The root's output is its input, which nobody writes to.
  job.output = mesh_->rank() == signature.root ? const_cast<void*>(request.input) : request.output;
  job.bytes = signature.bytes();
  job.root_index = pair.index_of(signature.root);
  backend_->run(pair, runnable.choice, job);
}

}  // namespace farandole::engine
