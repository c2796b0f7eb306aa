// Allreduces that send less than all of it; sums and averages of float16, bfloat16 and float32. The rows of the table;
// descriptions are there.
//
// The addend of one rank is its input, prescaled, plus its *residual*: the part of earlier tensors that has not been
// sent yet. The part that it does not send now stays in the residual, so that nothing is lost in the long run: the sum
// of all outputs equals the sum of all inputs, except for the residuals (Seide et al., "1-Bit Stochastic Gradient
// Descent", 2014; Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", 2019).
// Everything is computed in float32 and rounded once to the type of the output.
//
// Like every allreduce these give all ranks the same bits, and the same ones whatever else travels in the bucket: how a
// tensor is cut, and whose residual takes what, depends on the tensor alone.
#pragma once

#include <vector>

#include "collective/bucket.h"

namespace farandole::collective {

struct Context;

struct CompressedJob {
  AllreduceJob reduction;
  double ratio = 0;  // of a top-k: which part of the elements of each tensor is sent
  // Of each piece: as many elements as it has, read and written; null: what is not sent is lost. A rank that is absent
  // has none.
  std::vector<float*> residuals;
};

void allreduce_int8(Context& context, const CompressedJob& job);
void allreduce_topk(Context& context, const CompressedJob& job);

// A group of one compresses nothing: output = postscale(prescale(input) + residual), and nothing is left over.
void compressed_alone(const CompressedJob& job);

}  // namespace farandole::collective
