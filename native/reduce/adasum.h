// The arithmetic of Adasum, which adds two vectors so that what they have in common counts once:
//
//   a' = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b
//
// Orthogonal vectors are summed, parallel ones averaged. Everything is computed in float64, whatever the vectors hold,
// and rounded once at the end. Like all arithmetic here it gives the same bits with every instruction set.
//
// Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.
#pragma once

#include <cstddef>

#include "reduce/dtype.h"

namespace farandole::reduce {

// The dot products of two vectors, or of parts of them: those of the parts add up to those of the whole.
struct Products {
  double dot = 0;        // a.b
  double a_squared = 0;  // |a|^2
  double b_squared = 0;  // |b|^2
};

// `dtype` is float32 or float64: an accumulator type of a float. Element i is added to lane i % 8, and the lanes to
// each other at the end.
Products multiply(Dtype dtype, const void* a, const void* b, size_t count);

struct Factors {
  double a = 1;
  double b = 1;
};

// The factors of a and b in the sum. A vector whose squared norm is below the square root of the smallest normal
// float64 has no direction worth computing with: the factor in front of it is 1.
Factors adasum_factors(const Products& products) noexcept;

// sum[i] = factors.a * a[i] + factors.b * b[i]. `sum` may be `a` or `b`; `dtype` as above.
void blend(Dtype dtype, const void* a, const void* b, const Factors& factors, void* sum, size_t count);

}  // namespace farandole::reduce
