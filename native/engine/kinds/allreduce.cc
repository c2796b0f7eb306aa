// Allreduce: every rank gets the reduction of all ranks' tensors, which may be compressed on the way.
#include "engine/kinds/checks.h"
#include "engine/kinds/reduction.h"

namespace farandole::engine::kinds {
namespace {

using collective::Group;

bool is_float(reduce::Dtype dtype) {
  return dtype == reduce::Dtype::kF16 || dtype == reduce::Dtype::kBf16 || dtype == reduce::Dtype::kF32 ||
         dtype == reduce::Dtype::kF64;
}

void check_compression(const Request& request) {
  const Signature& signature = request.signature;
  if (signature.compression == Compression::kNone) {
    return;
  }
  const std::string what = std::string(name_of(signature.compression)) + " compression of '" + request.name + "': ";
  if (signature.op != ReduceOp::kSum && signature.op != ReduceOp::kAverage) {
    refuse(what + "it is for sums and averages, not for " + name_of(signature.op) + ". Send it without compression.");
  }
  if (reduce::accumulator_of(signature.dtype) != reduce::Dtype::kF32) {
    refuse(what + "it is for float16, bfloat16 and float32, not for " + reduce::name_of(signature.dtype) +
           ". Convert the tensor to float32, or send it without compression.");
  }
  if (signature.compression == Compression::kTopk) {
    if (!(signature.compression_ratio > 0 && signature.compression_ratio <= 1)) {
      refuse(what + "the ratio of elements to send is above 0 and at most 1, not " +
             std::to_string(signature.compression_ratio) + ".");
    }
    // Places of elements are sent as 32-bit numbers.
    if (signature.elements() > int64_t{1} << 32) {
      refuse(what + "it is for tensors of at most 2^32 elements. Cut the tensor, or send it without compression.");
    }
  }
}

void check(const Request& request, const Group&, int) {
  check_reducible(request);
  check_compression(request);
  if (request.signature.op == ReduceOp::kAdasum && !is_float(request.signature.dtype)) {
    refuse("allreduce: Adasum needs a floating-point type, but '" + request.name + "' is of " +
           reduce::name_of(request.signature.dtype) + ". Convert it, or use another operation.");
  }
}

collective::Operation operation(const Options& options) {
  if (options.compression != Compression::kNone) {
    return collective::Operation::kCompressedAllreduce;
  }
  return options.op == ReduceOp::kAdasum ? collective::Operation::kAdasum : collective::Operation::kAllreduce;
}

collective::Job compressed_job(const Group& group, std::span<Runnable* const> bucket) {
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

collective::Job make_job(const Group& group, std::span<Runnable* const> bucket, collective::Copied& copied) {
  const Pending& first = *bucket.front()->pending;
  if (first.request.signature.compression != Compression::kNone) {
    return compressed_job(group, bucket);
  }
  collective::AllreduceJob job = allreduce_job_of(first.request, group.size(), copied);
  for (const Runnable* runnable : bucket.subspan(1)) {
    job.pieces.push_back(piece_of(runnable->pending->request));
  }
  job.is_staged = first.is_staged;
  job.reduced_by = first.reduced_by;
  return job;
}

}  // namespace

constexpr KindRow kAllreduce = {.name = "allreduce",
                                .has = kTensor | kReduction | kCompression,
                                .memory = Memory::kInputAndOutput,
                                .merges = true,
                                .operation = operation,
                                .check = check,
                                .make_job = make_job};

}  // namespace farandole::engine::kinds
