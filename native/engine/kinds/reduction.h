// The common part of the jobs of all reductions.
#pragma once

#include "engine/pending.h"
#include "reduce/kernels.h"

namespace farandole::engine::kinds {

// Averages and Adasum are sums to the algorithms: the one divides, the other has an algorithm of its own.
inline reduce::Op reduction_of(ReduceOp op) {
  return op == ReduceOp::kAverage || op == ReduceOp::kAdasum ? reduce::Op::kSum : static_cast<reduce::Op>(op);
}

// A job with its dtype, operation and factors.
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

inline collective::Piece piece_of(const Request& request) {
  return {request.input, request.output, static_cast<size_t>(request.signature.elements())};
}

// The job of one allreduce that is not compressed.
inline collective::AllreduceJob allreduce_job_of(const Request& request, size_t members, collective::Copied& copied) {
  auto job = reduction_job<collective::AllreduceJob>(request.signature, members);
  job.pieces.push_back(piece_of(request));
  job.copied = &copied;
  return job;
}

}  // namespace farandole::engine::kinds
