#include "collective/run.h"

#include <cstring>

#include "reduce/kernels.h"

namespace farandole::collective {
namespace {

void copy_alone(const void* input, void* output, size_t bytes) {
  if (input != output && bytes > 0) {
    std::memcpy(output, input, bytes);
  }
}

void run_alone(const AllreduceJob& job) {
  for (const Piece& piece : job.pieces) {
    if (piece.output != nullptr) {
      reduce::scale_to(job.dtype, piece.input, piece.output, piece.count, job.prescale);
      reduce::scale_to(job.dtype, piece.output, piece.output, piece.count, job.postscale);
    }
  }
}

void run_alone(const CompressedJob& job) { compressed_alone(job); }

void run_alone(const AllgatherJob& job) { copy_alone(job.input, job.output, job.bytes.front()); }

void run_alone(const BroadcastJob& job) { copy_alone(job.input, job.output, job.bytes); }

void run_alone(const AlltoallJob& job) {
  copy_alone(job.input, job.output(job.rows), static_cast<size_t>(job.rows.front()) * job.row_bytes);
}

void run_alone(const ReducescatterJob& job) {
  reduce::scale_to(job.dtype, job.input, job.output, job.counts.front(), job.prescale);
  reduce::scale_to(job.dtype, job.output, job.output, job.counts.front(), job.postscale);
}

}  // namespace

void run(Context& context, const Choice& choice, const Job& job) {
  if (context.group.size() == 1) {
    std::visit([](const auto& each) { run_alone(each); }, job);
  } else {
    choice.algorithm->run(context, job);
  }
}

}  // namespace farandole::collective
