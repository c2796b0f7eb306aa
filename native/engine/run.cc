// The engine thread: running what was agreed, bucket by bucket, and saying what became of it.
#include <bit>
#include <utility>

#include "engine/engine.h"
#include "engine/fusion.h"

namespace farandole::engine {
namespace {

using base::Code;
using collective::Group;

// Requests that may share a bucket have equal keys: same type, operation, factors, algorithm.
uint64_t fusion_key(const Signature& signature, uint32_t algorithm) {
  uint64_t key = static_cast<uint64_t>(signature.dtype) | static_cast<uint64_t>(signature.op) << 8 |
                 static_cast<uint64_t>(algorithm) << 16;
  for (const double factor : {signature.prescale, signature.postscale}) {
    key = key * 0x9e3779b97f4a7c15U ^ std::bit_cast<uint64_t>(factor);
  }
  return key;
}

reduce::Op reduction_of(ReduceOp op) {
  return op == ReduceOp::kAverage ? reduce::Op::kSum : static_cast<reduce::Op>(op);
}

}  // namespace

void Engine::run_all(const Group& group, std::vector<Runnable> runnables) {
  std::vector<Fusible> plan;
  for (Runnable& runnable : runnables) {
    const Signature& signature = runnable.pending->request.signature;
    Fusible fusible{signature.bytes(), 0, true};
    switch (signature.kind) {
      case Kind::kAllreduce:
        runnable.choice = backend_->choose_allreduce(group, signature.bytes());
        fusible.alone = !runnable.choice.algorithm->fusible;
        fusible.key = fusion_key(signature, runnable.choice.index);
        break;
      case Kind::kAllgather:
        runnable.choice = backend_->choose_allgather(group);
        break;
      case Kind::kBroadcast:
        runnable.choice = backend_->choose_broadcast(group);
        break;
      default:
        runnable.choice = {nullptr, kNone, "agreement is all it takes"};
    }
    plan.push_back(fusible);
  }
  const auto buckets = plan_buckets(plan, static_cast<size_t>(fusion_threshold_));
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
      run_allreduce(group, bucket);
      break;
    case Kind::kAllgather:
      run_allgather(group, *bucket.front());
      break;
    case Kind::kBroadcast:
      run_broadcast(group, *bucket.front());
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

void Engine::run_allreduce(const Group& group, const std::vector<Runnable*>& bucket) {
  const Signature& signature = bucket.front()->pending->request.signature;
  collective::AllreduceJob job;
  job.dtype = signature.dtype;
  job.op = reduction_of(signature.op);
  job.prescale.factor = signature.prescale;
  job.postscale.factor = signature.postscale;
  job.postscale.divisor = signature.op == ReduceOp::kAverage ? static_cast<int64_t>(group.size()) : 1;
  for (const Runnable* runnable : bucket) {
    const Request& request = runnable->pending->request;
    job.pieces.push_back({request.input, request.output, static_cast<size_t>(request.signature.elements())});
  }
  backend_->run(group, bucket.front()->choice, job);
}

void Engine::run_allgather(const Group& group, Runnable& runnable) {
  const Request& request = runnable.pending->request;
  const size_t row = static_cast<size_t>(request.signature.row_elements()) * reduce::size_of(request.signature.dtype);
  collective::AllgatherJob job;
  job.input = request.input;
  size_t total = 0;
  for (const int64_t rows : runnable.sizes) {
    job.bytes.push_back(static_cast<size_t>(rows) * row);
    total += job.bytes.back();
  }
  Completion& completion = *runnable.pending->completion;
  completion.data.resize(total);
  completion.sizes = runnable.sizes;
  job.output = completion.data.data();
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

}  // namespace farandole::engine
