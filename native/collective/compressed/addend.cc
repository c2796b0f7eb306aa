#include "collective/compressed/addend.h"

#include <algorithm>
#include <array>

#include "collective/scaled_copy.h"

namespace farandole::collective {
namespace {

using reduce::Dtype;

// Input in float32, prescaled.
void read_input(const AllreduceJob& job, const Piece& piece, size_t from, size_t count, float* values) {
  const size_t element = reduce::size_of(job.dtype);
  reduce::convert(job.dtype, Dtype::kF32, static_cast<const std::byte*>(piece.input) + from * element, values, count);
  if (!job.prescale.is_one()) {
    reduce::scale_to(Dtype::kF32, values, values, count, job.prescale);
  }
}

}  // namespace

float* make_addend(const CompressedJob& job, size_t piece, size_t from, size_t count, float* scratch) {
  const Piece& tensor = job.reduction.pieces[piece];
  float* const residual = job.residuals[piece] == nullptr ? nullptr : job.residuals[piece] + from;
  if (tensor.input == nullptr) {
    std::fill_n(scratch, count, 0.0F);
    return scratch;
  }
  if (residual == nullptr) {
    read_input(job.reduction, tensor, from, count, scratch);
    return scratch;
  }
  alignas(64) std::array<float, kAddendBlock> block;
  for (size_t at = 0; at < count; at += kAddendBlock) {
    const size_t length = std::min(kAddendBlock, count - at);
    read_input(job.reduction, tensor, from + at, length, block.data());
    reduce::accumulate(Dtype::kF32, reduce::Op::kSum, residual + at, block.data(), length);
  }
  return residual;
}

void write_result(const CompressedJob& job, size_t piece, size_t from, size_t count, const float* sum) {
  const Piece& tensor = job.reduction.pieces[piece];
  if (tensor.output == nullptr) {
    return;
  }
  const size_t element = reduce::size_of(job.reduction.dtype);
  scaled_copy(Dtype::kF32, job.reduction.dtype, reinterpret_cast<const std::byte*>(sum),
              static_cast<std::byte*>(tensor.output) + from * element, count, job.reduction.postscale);
}

void compressed_alone(const CompressedJob& job) {
  alignas(64) std::array<float, kAddendBlock> scratch;
  for (size_t i = 0; i < job.reduction.pieces.size(); ++i) {
    const size_t count = job.reduction.pieces[i].count;
    for (size_t at = 0; at < count; at += kAddendBlock) {
      const size_t length = std::min(kAddendBlock, count - at);
      float* const addend = make_addend(job, i, at, length, scratch.data());
      write_result(job, i, at, length, addend);
      if (addend != scratch.data()) {
        std::fill_n(addend, length, 0.0F);
      }
    }
  }
}

}  // namespace farandole::collective
