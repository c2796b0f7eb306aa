// The addend of one rank, in float32: its prescaled input plus its residual.
#pragma once

#include <cstddef>

#include "collective/compressed/compressed.h"

namespace farandole::collective {

// So many elements are worked on at once that they stay in the first-level cache. A multiple of the chunks that share a
// scale.
inline constexpr size_t kAddendBlock = 4096;

// Gives where elements [from, from + count) of a piece's addend are, as numbers that may be changed: in the residual
// if there is one, which then holds the sum, and in `scratch` otherwise.
float* make_addend(const CompressedJob& job, size_t piece, size_t from, size_t count, float* scratch);

// Writes elements [from, from + count) of a piece's result, scaled; `sum` may be where the output is. Nothing is
// written for a rank that is absent.
void write_result(const CompressedJob& job, size_t piece, size_t from, size_t count, const float* sum);

}  // namespace farandole::collective
