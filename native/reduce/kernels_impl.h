// The kernels, written once and compiled for each instruction set by kernels_<isa>.cc, which first
// defines kVectorBytes, the size of that set's registers.
//
// How a fold goes: a *pack* is kVectors registers, some hundred bytes of each input. It is loaded from the
// first input, combined with the same pack of every other input, scaled, and stored to all outputs, before
// the next pack is looked at. So nothing is written twice, the accumulator never leaves the registers,
// any number of inputs and outputs runs through one loop, and an output may be one of the inputs.
// The last, incomplete pack takes the same way through a small buffer.
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

#include <cstddef>
#include <cstdint>

#include "reduce/variant.h"

namespace farandole::reduce {
namespace {

template <typename T, size_t kCount>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kCount * sizeof(T))));
};
template <typename T, size_t kCount>
using Vector = typename VectorOf<T, kCount>::Type;

template <typename To, typename From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

// ---- Element types: what lies in memory (Stored) and what is computed with (Lane).

// A number that is computed with as it is.
template <typename T>
struct Plain {
  using Stored = T;
  using Lane = T;
  static constexpr size_t kLanes = kVectorBytes / sizeof(Lane);
  using StoredVector = Vector<Stored, kLanes>;
  using LaneVector = Vector<Lane, kLanes>;
  static LaneVector widen(StoredVector stored) { return stored; }
  static StoredVector narrow(LaneVector lanes) { return lanes; }
};

// A byte; anything but zero is true, and what we write is 0 or 1.
struct Boolean : Plain<uint8_t> {
  static LaneVector widen(StoredVector stored) { return bits_as<LaneVector>(stored != 0) & 1; }
  static StoredVector narrow(LaneVector lanes) { return widen(lanes); }
};

// 16 bits in memory, float32 in registers.
struct Float16Bits {
  using Stored = uint16_t;
  using Lane = float;
  static constexpr size_t kLanes = kVectorBytes / sizeof(Lane);
  using StoredVector = Vector<Stored, kLanes>;
  using LaneVector = Vector<Lane, kLanes>;
  using Word = Vector<uint32_t, kLanes>;
};

struct Bfloat16 : Float16Bits {
  static LaneVector widen(StoredVector stored) {
    return bits_as<LaneVector>(__builtin_convertvector(stored, Word) << 16);
  }
  static StoredVector narrow(LaneVector lanes) {
    const Word bits = bits_as<Word>(lanes);
    const Word rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const Word quiet_nan = bits | 0x400000;  // rounding could carry a NaN over to infinity
    return __builtin_convertvector((lanes != lanes ? quiet_nan : rounded) >> 16, StoredVector);
  }
};

// float16 on processors without conversion instructions. No step has a subnormal float32 as operand or result,
// so that a thread that flushes those to zero gets the same bits.
struct SoftFloat16 : Float16Bits {
  static LaneVector widen(StoredVector stored) {
    const Word half = __builtin_convertvector(stored, Word);
    const Word magnitude = half & 0x7fff;
    const Word sign = (half & 0x8000) << 16;
    const Word normal = (magnitude << 13) + ((127 - 15) << 23);
    const Word special = (magnitude << 13) | 0x7f800000 | bits_as<Word>((magnitude > 0x7c00) & 0x400000);
    // A subnormal m * 2^-24 is (2^-14 + m * 2^-24) - 2^-14, and the float32 in parentheses has m in its low bits.
    const Word tiny_offset = Word{} + ((127 - 14) << 23);
    const Word subnormal =
        bits_as<Word>(bits_as<LaneVector>((magnitude << 13) + tiny_offset) - bits_as<LaneVector>(tiny_offset));
    const Word finite = magnitude < 0x400 ? subnormal : normal;
    return bits_as<LaneVector>(sign | (magnitude >= 0x7c00 ? special : finite));
  }
  static StoredVector narrow(LaneVector lanes) {
    const Word bits = bits_as<Word>(lanes);
    const Word magnitude = bits & 0x7fffffff;
    const Word sign = (bits >> 16) & 0x8000;
    const Word normal = (magnitude - ((127 - 15) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    // Adding 0.5 makes the addition itself round to multiples of 2^-24, the subnormals of float16.
    const Word half_bits = Word{} + 0x3f000000;
    const Word subnormal = bits_as<Word>(bits_as<LaneVector>(magnitude) + bits_as<LaneVector>(half_bits)) - half_bits;
    const Word quiet_nan = ((magnitude >> 13) & 0x3ff) | 0x7e00;
    const Word infinity = Word{} + 0x7c00;
    const Word finite = magnitude < ((127 - 14) << 23) ? subnormal : normal;
    const Word large = magnitude > 0x7f800000 ? quiet_nan : infinity;
    // From 65520 on, the nearest float16 is infinity.
    return __builtin_convertvector(sign | (magnitude >= 0x477ff000 ? large : finite), StoredVector);
  }
};

// ---- Operations on two vectors of lanes.

template <typename T>
struct UnsignedOf {
  using Type = T;
};
template <>
struct UnsignedOf<int8_t> {
  using Type = uint8_t;
};
template <>
struct UnsignedOf<int16_t> {
  using Type = uint16_t;
};
template <>
struct UnsignedOf<int32_t> {
  using Type = uint32_t;
};
template <>
struct UnsignedOf<int64_t> {
  using Type = uint64_t;
};

// The type in which `Lane` overflows without undefined behaviour.
template <typename Lane>
using Wrapping = Vector<typename UnsignedOf<Lane>::Type, kVectorBytes / sizeof(Lane)>;

struct Sum {
  template <typename Lane, typename V>
  static V apply(V a, V b) {
    return bits_as<V>(bits_as<Wrapping<Lane>>(a) + bits_as<Wrapping<Lane>>(b));
  }
};

struct Product {
  template <typename Lane, typename V>
  static V apply(V a, V b) {
    return bits_as<V>(bits_as<Wrapping<Lane>>(a) * bits_as<Wrapping<Lane>>(b));
  }
};

template <typename Lane>
inline constexpr bool kIsFloat = static_cast<Lane>(0.5) != 0;

// A NaN wins from either side: as `a` by the test, as `b` because it compares false.
struct Min {
  template <typename Lane, typename V>
  static V apply(V a, V b) {
    if constexpr (kIsFloat<Lane>) {
      return (a < b) | (a != a) ? a : b;
    } else {
      return a < b ? a : b;
    }
  }
};

struct Max {
  template <typename Lane, typename V>
  static V apply(V a, V b) {
    if constexpr (kIsFloat<Lane>) {
      return (a > b) | (a != a) ? a : b;
    } else {
      return a > b ? a : b;
    }
  }
};

// ---- Scaling.

// Truncates toward zero; what does not fit becomes the nearest number that does, NaN becomes 0.
template <typename T>
inline T truncated(double value) {
  constexpr bool kSigned = static_cast<T>(-1) < 0;
  constexpr int kValueBits = static_cast<int>(sizeof(T)) * 8 - (kSigned ? 1 : 0);
  constexpr T kLargest = static_cast<T>(~uint64_t{0} >> (64 - kValueBits));
  constexpr T kSmallest = kSigned ? static_cast<T>(-kLargest - 1) : T{0};
  constexpr double kLimit = static_cast<double>(uint64_t{1} << (kValueBits - 1)) * 2;  // 2^kValueBits, exactly
  if (value >= kLimit) {
    return kLargest;
  }
  if (value <= static_cast<double>(kSmallest)) {
    return kSmallest;
  }
  return value == value ? static_cast<T>(value) : T{0};
}

template <typename Lane, typename V>
inline V scaled(V lanes, const Scaling& scaling) {
  if constexpr (kIsFloat<Lane>) {
    const V multiplied = lanes * static_cast<Lane>(scaling.factor);
    const Lane divisor = static_cast<Lane>(scaling.divisor);
    return scaling.kind == Scaling::Kind::kDivide ? multiplied / divisor : multiplied * (1 / divisor);
  } else {
    const double divisor = static_cast<double>(scaling.divisor);
    V result = lanes;
    for (size_t i = 0; i < sizeof(V) / sizeof(Lane); ++i) {
      result[i] = truncated<Lane>(static_cast<double>(lanes[i]) * scaling.factor / divisor);
    }
    return result;
  }
}

// ---- Packs and the loops over them.

template <typename Element>
struct Pack {
  using Stored = typename Element::Stored;
  static constexpr size_t kVectors = 4;  // enough to hide the latency of an addition
  static constexpr size_t kCount = kVectors * Element::kLanes;

  typename Element::LaneVector lanes[kVectors];

  static Pack load(const Stored* from) {
    Pack pack;
#pragma GCC unroll 4
    for (size_t i = 0; i < kVectors; ++i) {
      typename Element::StoredVector stored;
      __builtin_memcpy(&stored, from + i * Element::kLanes, sizeof(stored));
      pack.lanes[i] = Element::widen(stored);
    }
    return pack;
  }

  void store(Stored* to) const {
#pragma GCC unroll 4
    for (size_t i = 0; i < kVectors; ++i) {
      const typename Element::StoredVector stored = Element::narrow(lanes[i]);
      __builtin_memcpy(to + i * Element::kLanes, &stored, sizeof(stored));
    }
  }

  // The first `count` elements; the others are zero.
  static Pack load_some(const Stored* from, size_t count) {
    Stored buffer[kCount] = {};
    __builtin_memcpy(buffer, from, count * sizeof(Stored));
    return load(buffer);
  }

  void store_some(Stored* to, size_t count) const {
    Stored buffer[kCount];
    store(buffer);
    __builtin_memcpy(to, buffer, count * sizeof(Stored));
  }

  template <typename Operation>
  void combine(const Pack& other) {
#pragma GCC unroll 4
    for (size_t i = 0; i < kVectors; ++i) {
      lanes[i] = Operation::template apply<typename Element::Lane>(lanes[i], other.lanes[i]);
    }
  }

  void scale(const Scaling& scaling) {
#pragma GCC unroll 4
    for (size_t i = 0; i < kVectors; ++i) {
      lanes[i] = scaled<typename Element::Lane>(lanes[i], scaling);
    }
  }
};

template <typename Element, typename Operation>
void fold(const void* const* inputs, size_t input_count, void* const* outputs, size_t output_count, size_t count,
          const Scaling& scaling) {
  using P = Pack<Element>;
  using Stored = typename Element::Stored;
  const auto input = [&](size_t k, size_t at) { return static_cast<const Stored*>(inputs[k]) + at; };
  const auto output = [&](size_t k, size_t at) { return static_cast<Stored*>(outputs[k]) + at; };
  size_t at = 0;
  for (; at + P::kCount <= count; at += P::kCount) {
    P pack = P::load(input(0, at));
    for (size_t k = 1; k < input_count; ++k) {
      pack.template combine<Operation>(P::load(input(k, at)));
    }
    if (scaling.kind != Scaling::Kind::kNone) {
      pack.scale(scaling);
    }
    for (size_t k = 0; k < output_count; ++k) {
      pack.store(output(k, at));
    }
  }
  if (at == count) {
    return;
  }
  const size_t rest = count - at;
  P pack = P::load_some(input(0, at), rest);
  for (size_t k = 1; k < input_count; ++k) {
    pack.template combine<Operation>(P::load_some(input(k, at), rest));
  }
  if (scaling.kind != Scaling::Kind::kNone) {
    pack.scale(scaling);
  }
  for (size_t k = 0; k < output_count; ++k) {
    pack.store_some(output(k, at), rest);
  }
}

template <typename Element>
void widen(const void* source, void* destination, size_t count) {
  using P = Pack<Element>;
  using Wide = Pack<Plain<float>>;
  const auto* from = static_cast<const typename Element::Stored*>(source);
  auto* to = static_cast<float*>(destination);
  const auto rewrapped = [](const P& pack) { return bits_as<Wide>(pack); };
  size_t at = 0;
  for (; at + P::kCount <= count; at += P::kCount) {
    rewrapped(P::load(from + at)).store(to + at);
  }
  rewrapped(P::load_some(from + at, count - at)).store_some(to + at, count - at);
}

template <typename Element>
void narrow(const void* source, void* destination, size_t count) {
  using P = Pack<Element>;
  using Wide = Pack<Plain<float>>;
  const auto* from = static_cast<const float*>(source);
  auto* to = static_cast<typename Element::Stored*>(destination);
  const auto rewrapped = [](const Wide& pack) { return bits_as<P>(pack); };
  size_t at = 0;
  for (; at + P::kCount <= count; at += P::kCount) {
    rewrapped(Wide::load(from + at)).store(to + at);
  }
  rewrapped(Wide::load_some(from + at, count - at)).store_some(to + at, count - at);
}

// ---- The table.

template <typename Element>
constexpr void enter(Kernels& kernels, Dtype dtype) {
  Fold* folds = kernels.fold[static_cast<size_t>(dtype)];
  folds[static_cast<size_t>(Op::kSum)] = fold<Element, Sum>;
  folds[static_cast<size_t>(Op::kMin)] = fold<Element, Min>;
  folds[static_cast<size_t>(Op::kMax)] = fold<Element, Max>;
  folds[static_cast<size_t>(Op::kProduct)] = fold<Element, Product>;
}

template <typename Float16>
constexpr Kernels make_kernels() {
  Kernels kernels = {};
  enter<Plain<uint8_t>>(kernels, Dtype::kU8);
  enter<Plain<int8_t>>(kernels, Dtype::kI8);
  enter<Plain<int16_t>>(kernels, Dtype::kI16);
  enter<Plain<int32_t>>(kernels, Dtype::kI32);
  enter<Plain<int64_t>>(kernels, Dtype::kI64);
  enter<Float16>(kernels, Dtype::kF16);
  enter<Plain<float>>(kernels, Dtype::kF32);
  enter<Plain<double>>(kernels, Dtype::kF64);
  enter<Bfloat16>(kernels, Dtype::kBf16);
  // On 0 and 1, "or" is the larger and "and" the smaller.
  Fold* folds = kernels.fold[static_cast<size_t>(Dtype::kBool)];
  folds[static_cast<size_t>(Op::kSum)] = folds[static_cast<size_t>(Op::kMax)] = fold<Boolean, Max>;
  folds[static_cast<size_t>(Op::kProduct)] = folds[static_cast<size_t>(Op::kMin)] = fold<Boolean, Min>;
  kernels.widen[static_cast<size_t>(Dtype::kF16)] = widen<Float16>;
  kernels.narrow[static_cast<size_t>(Dtype::kF16)] = narrow<Float16>;
  kernels.widen[static_cast<size_t>(Dtype::kBf16)] = widen<Bfloat16>;
  kernels.narrow[static_cast<size_t>(Dtype::kBf16)] = narrow<Bfloat16>;
  return kernels;
}

}  // namespace
}  // namespace farandole::reduce
