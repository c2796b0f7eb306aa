// The interface between the dispatcher and the variants of the kernels. A variant is the same source compiled for
// one instruction set; all it shows to the linker is its Kernels table.
//
// This header is read by files compiled with -mavx2 and the like, so it holds types only: see kernels_impl.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/adasum.h"
#include "reduce/dtype.h"

namespace farandole::reduce {

// Scale, made ready for the inner loop.
struct Scaling {
  enum class Kind : uint8_t {
    kNone,
    kMultiply,  // by `factor` alone: there is no divisor, or only one that is a power of two and made the factor
    kDivide,    // multiply, then divide
  };
  Kind kind = Kind::kNone;
  bool averages = false;  // only a divisor was asked for
  double factor = 1.0;
  int64_t divisor = 1;  // as asked for, also with kMultiply
};

// What a fold reads and writes: elements [from, to) of at least one input and one output.
struct FoldJob {
  const void* const* inputs;
  size_t input_count;
  void* const* outputs;
  size_t output_count;
  size_t from;
  size_t to;
  bool streams;  // past the caches; then element `from` of every output is aligned to kStreamAlignment
};

inline constexpr size_t kStreamAlignment = 64;  // a cache line, and the largest register

// Folds the inputs from the left, scales, and writes to every output.
using Fold = void (*)(const FoldJob& job, const Scaling& scaling);
// `destination` is aligned to kStreamAlignment, and `bytes` a multiple of kStreamBlock.
using CopyStream = void (*)(const void* source, void* destination, size_t bytes);
inline constexpr size_t kStreamBlock = 256;
using Convert = void (*)(const void* source, void* destination, size_t count);
using Multiply = Products (*)(const void* a, const void* b, size_t count);
using Quantize = void (*)(float* values, size_t count, std::byte* bytes);
using Dequantize = void (*)(const std::byte* bytes, size_t count, float* values);
using Blend = void (*)(const void* a, const void* b, const Factors& factors, void* sum, size_t count);

inline constexpr size_t kDtypeSlots = 11;  // one more than the largest Dtype
inline constexpr size_t kOpSlots = 6;      // one more than the largest Op

struct Kernels {
  Fold fold[kDtypeSlots][kOpSlots];
  CopyStream copy_stream;
  Convert widen[kDtypeSlots];      // from the 16-bit floats to float32
  Convert narrow[kDtypeSlots];     // and back
  Multiply multiply[kDtypeSlots];  // of float32 and float64 only, as is the next
  Blend blend[kDtypeSlots];
  Quantize quantize;
  Dequantize dequantize;
  Dequantize dequantize_add;
};

struct Variant {
  const char* name;
  const Kernels* kernels;
  bool runnable;  // by this processor and its operating system
};

// The variants in this binary, the best first, the baseline last.
struct Variants {
  const Variant* first;
  size_t count;
};
Variants built_variants() noexcept;

extern const Kernels kBaselineKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

}  // namespace farandole::reduce
