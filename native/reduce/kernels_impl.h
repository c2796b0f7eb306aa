// The kernels, written once and compiled for each instruction set by kernels_<isa>.cc, which defines
//
//  - kVectorBytes, the size of that set's registers, before it includes registers_impl.h;
//  - Isa, before it includes this file: the operations for which the set has its own instructions.
//     - stream(raw, to): a store past the caches; `to` is aligned to the size of `raw`.
//     - fence(): a thread that sees a later store of ours also sees the streamed stores before it.
//     - negated_where_negative(magnitude, sign): lanes of 16 bits; negates a magnitude where its sign is negative.
//     - truncated(values, slowly): float64 to int64; returns slowly(values), or the same value computed faster.
//
// Each subject is in <subject>_impl.h; this file has the table of the kernels that they define.
//
// Why everything is in an unnamed namespace and nothing of std:: is called: an inline function or template
// that the compiler does not inline is emitted in every object file that uses it, and the linker keeps any
// one of them, perhaps the one with AVX instructions, for the whole program. On a processor without AVX the
// program would then crash far from here. What is unnamed stays in its object file. For the same reason
// nothing here runs before main(): the table is a constant.
//
// Why vectors are spelled out instead of left to the compiler: GCC 12 vectorises neither float16 nor a loop
// over a variable number of inputs, and the build type must not decide whether we are fast.
#pragma once

#include "reduce/adasum_impl.h"
#include "reduce/convert_impl.h"
#include "reduce/fold_impl.h"
#include "reduce/quantize_impl.h"
#include "reduce/stream_impl.h"
#include "reduce/variant.h"

namespace farandole::reduce {
namespace {

template <typename Element>
constexpr void enter(Kernels& kernels, Dtype dtype) noexcept {
  Fold* folds = kernels.fold[static_cast<size_t>(dtype)];
  folds[static_cast<size_t>(Op::kSum)] = fold<Element, Sum>;
  folds[static_cast<size_t>(Op::kMin)] = fold<Element, Min>;
  folds[static_cast<size_t>(Op::kMax)] = fold<Element, Max>;
  folds[static_cast<size_t>(Op::kProduct)] = fold<Element, Product>;
}

// The minimum and the maximum of 16-bit floats, given their positive infinity.
template <typename Element, uint16_t kInfinity>
constexpr void enter_extremes(Kernels& kernels, Dtype dtype) noexcept {
  Fold* folds = kernels.fold[static_cast<size_t>(dtype)];
  folds[static_cast<size_t>(Op::kMin)] = fold_extreme<Element, Min, kInfinity, /*kLargest=*/false>;
  folds[static_cast<size_t>(Op::kMax)] = fold_extreme<Element, Max, kInfinity, /*kLargest=*/true>;
}

// The float16 elements are what the instruction sets do not have in common.
template <typename FoldedFloat16, typename ConvertedFloat16>
constexpr Kernels make_kernels() noexcept {
  Kernels kernels = {};
  enter<Plain<uint8_t>>(kernels, Dtype::kU8);
  enter<Plain<int8_t>>(kernels, Dtype::kI8);
  enter<Plain<int16_t>>(kernels, Dtype::kI16);
  enter<Plain<int32_t>>(kernels, Dtype::kI32);
  enter<Plain<int64_t>>(kernels, Dtype::kI64);
  enter<FoldedFloat16>(kernels, Dtype::kF16);
  enter<Plain<float>>(kernels, Dtype::kF32);
  enter<Plain<double>>(kernels, Dtype::kF64);
  enter<PairedBfloat16>(kernels, Dtype::kBf16);
  enter_extremes<FoldedFloat16, 0x7c00>(kernels, Dtype::kF16);
  enter_extremes<PairedBfloat16, 0x7f80>(kernels, Dtype::kBf16);
  Fold* folds = kernels.fold[static_cast<size_t>(Dtype::kBool)];
  folds[static_cast<size_t>(Op::kSum)] = folds[static_cast<size_t>(Op::kMax)] = fold<Boolean, Or>;
  folds[static_cast<size_t>(Op::kProduct)] = folds[static_cast<size_t>(Op::kMin)] = fold<Boolean, And>;
  kernels.copy_stream = copy_past_caches;
  kernels.widen[static_cast<size_t>(Dtype::kF16)] = widen<ConvertedFloat16>;
  kernels.narrow[static_cast<size_t>(Dtype::kF16)] = narrow<ConvertedFloat16>;
  kernels.widen[static_cast<size_t>(Dtype::kBf16)] = widen<Ordered<Bfloat16Format>>;
  kernels.narrow[static_cast<size_t>(Dtype::kBf16)] = narrow<Ordered<Bfloat16Format>>;
  kernels.multiply[static_cast<size_t>(Dtype::kF32)] = multiply<float>;
  kernels.multiply[static_cast<size_t>(Dtype::kF64)] = multiply<double>;
  kernels.blend[static_cast<size_t>(Dtype::kF32)] = blend<float>;
  kernels.blend[static_cast<size_t>(Dtype::kF64)] = blend<double>;
  kernels.quantize = quantize_run;
  kernels.dequantize = dequantize_run</*kAdd=*/false>;
  kernels.dequantize_add = dequantize_run</*kAdd=*/true>;
  return kernels;
}

}  // namespace
}  // namespace farandole::reduce
