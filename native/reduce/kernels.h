// The arithmetic of collectives: pure functions on memory, no threads, no state.
//
// One binary holds the kernels several times, compiled for the baseline, AVX2 and AVX-512; the best that
// the processor has is picked once, when first used. All variants give the same bits for the same inputs,
// except that where several NaNs meet, which one comes out is not promised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "reduce/dtype.h"

namespace farandole::reduce {

// What is multiplied into a result: x * factor / divisor, with divisor > 0. Integers are computed in float64
// and truncated toward zero; what does not fit becomes the nearest number that does, and NaN becomes 0. A bool
// is scaled as the integer 0 or 1. 16-bit floats are computed in float32, the others in their own type.
// {1, 1} leaves every bit as it is. Division is by the divisor itself (not by a rounded reciprocal), so that
// the average of equal values is that value.
struct Scale {
  double factor = 1.0;
  int64_t divisor = 1;
  bool is_one() const noexcept { return factor == 1.0 && divisor == 1; }
  bool operator==(const Scale&) const = default;
};

// Where results are stored. A streamed store goes past the caches to memory: it reads nothing in exchange for the line
// that it fills, and evicts nothing that is needed. It is faster if the outputs are large and are not read again soon,
// and slower otherwise; the bits are the same. It is only a hint: short outputs, or several that cannot be aligned
// together, are stored as usual. When the function returns, a thread that sees a later store of ours sees the streamed
// ones too.
enum class Stores : uint8_t { kCached, kStreamed };

// outputs[j][i] = scale(inputs[0][i] op inputs[1][i] op ...) for every j, folded from the left in the
// order of `inputs`, held in the accumulator type and rounded once at the end. An output may be one of
// the inputs (the same address); otherwise they do not overlap. Sum of bool is "or", product is "and".
// Integer sums and products wrap. A NaN in any input of min or max gives NaN; of equal values (-0 and 0) the
// later one stays.
// Requires: at least one input. Zero outputs or count 0 is a no-op. Addresses are aligned to the element.
void reduce_to(Dtype dtype, Op op, std::span<const void* const> inputs, std::span<void* const> outputs, size_t count,
               const Scale& scale, Stores stores = Stores::kCached);

// Copies `bytes` with streamed stores. The ranges do not overlap.
void copy_stream(void* destination, const void* source, size_t bytes);

// accumulator[i] = accumulator[i] op input[i], both of `dtype`.
void accumulate(Dtype dtype, Op op, void* accumulator, const void* input, size_t count);

// destination[i] = scale(source[i]); source and destination are the same address or do not overlap.
void scale_to(Dtype dtype, const void* source, void* destination, size_t count, const Scale& scale,
              Stores stores = Stores::kCached);

// Writes `count` elements that leave the other operand of `op` as it is: 0 for a sum, 1 for a product, the largest
// there is for a minimum and the smallest for a maximum (the infinities of floats, true and false of bool).
void fill_identity(Dtype dtype, Op op, void* destination, size_t count);

// Converts between a type and its accumulator (either way), or copies when `from` == `to`.
// Rounds to nearest even; float32 NaN stays NaN; float16 overflow is infinity.
void convert(Dtype from, Dtype to, const void* source, void* destination, size_t count);

// The variant in use: "avx512", "avx2" or "baseline". The environment variable FARANDOLE_ISA, read once,
// asks for a smaller one (for tests and for comparing).
std::string_view active_isa() noexcept;

// For tests: every variant this processor can run, and a switch to one of them. Not thread-safe.
std::span<const std::string_view> runnable_isas() noexcept;
void use_isa(std::string_view name);

}  // namespace farandole::reduce
