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

template <typename T>
using Register = Vector<T, kVectorBytes / sizeof(T)>;
using Floats = Register<float>;
using Words = Register<uint32_t>;
using Integers = Register<int32_t>;

// ---- Formats: the 16-bit floats as the low halves of 32-bit words, to float32 and back.

struct Bfloat16Format {
  static Floats to_float(Words bits) { return bits_as<Floats>(bits << 16); }
  static Words from_float(Floats value) {
    const Words bits = bits_as<Words>(value);
    const Words rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const Words quiet_nan = bits | 0x400000;  // rounding could carry a NaN over to infinity
    return (value != value ? quiet_nan : rounded) >> 16;
  }
};

// float16 without conversion instructions. No step has a subnormal float32 as operand or result, so that a
// thread that flushes those to zero gets the same bits. Magnitudes are compared as signed integers, which
// SSE2 can and which is right without the sign bit.
struct Float16Format {
  static Floats to_float(Words bits) {
    const Words magnitude = bits & 0x7fff;
    const Words sign = (bits & 0x8000) << 16;
    const Words normal = (magnitude << 13) + ((127 - 15) << 23);
    // A subnormal m * 2^-24 is (2^-14 + m * 2^-24) - 2^-14, and the float32 in parentheses has m in its low bits.
    const Words offset = Words{} + ((127 - 14) << 23);
    const Words subnormal = bits_as<Words>(bits_as<Floats>((magnitude << 13) + offset) - bits_as<Floats>(offset));
    const Integers compared = bits_as<Integers>(magnitude);
    const Words quiet = bits_as<Words>(compared > 0x7c00) & 0x400000;
    const Words special = (magnitude << 13) | 0x7f800000 | quiet;
    const Words finite = compared < 0x400 ? subnormal : normal;
    return bits_as<Floats>(sign | (compared < 0x7c00 ? finite : special));
  }
  static Words from_float(Floats value) {
    const Words bits = bits_as<Words>(value);
    const Words magnitude = bits & 0x7fffffff;
    const Words sign = (bits >> 16) & 0x8000;
    const Words normal = (magnitude - ((127 - 15) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    // Adding 0.5 makes the addition itself round to multiples of 2^-24, the subnormals of float16. A subnormal
    // float32, which a thread may flush before it adds, rounds to zero either way.
    const Words half = Words{} + 0x3f000000;
    const Words subnormal = bits_as<Words>(bits_as<Floats>(magnitude) + bits_as<Floats>(half)) - half;
    const Words quiet_nan = ((magnitude >> 13) & 0x3ff) | 0x7e00;
    const Words infinity = Words{} + 0x7c00;
    const Integers compared = bits_as<Integers>(magnitude);
    const Words finite = compared < ((127 - 14) << 23) ? subnormal : normal;
    const Words large = compared > 0x7f800000 ? quiet_nan : infinity;
    // Below 2^16, rounding up from 65520 on carries over to infinity by itself.
    return sign | (compared < ((127 + 16) << 23) ? finite : large);
  }
};

// ---- Elements: how registers of lanes, which are computed with, come from memory and go back.
// kGroup is the number of registers that one load fills.

// A number that is computed with as it is.
template <typename T>
struct Plain {
  using Stored = T;
  using Lane = T;
  static constexpr size_t kGroup = 1;
  static void load(const Stored* from, Register<T>* lanes) { __builtin_memcpy(lanes, from, sizeof(*lanes)); }
  static void store(const Register<T>* lanes, Stored* to) { __builtin_memcpy(to, lanes, sizeof(*lanes)); }
};

// A byte; anything but zero is true, and what we write is 0 or 1.
struct Boolean {
  using Stored = uint8_t;
  using Lane = uint8_t;
  static constexpr size_t kGroup = 1;
  static Register<Lane> normal(Register<Lane> lanes) { return bits_as<Register<Lane>>(lanes != 0) & 1; }
  static void load(const Stored* from, Register<Lane>* lanes) {
    __builtin_memcpy(lanes, from, sizeof(*lanes));
    *lanes = normal(*lanes);
  }
  static void store(const Register<Lane>* lanes, Stored* to) {
    const Register<Lane> stored = normal(*lanes);
    __builtin_memcpy(to, &stored, sizeof(stored));
  }
};

// 16 bits in memory, float32 in lanes; the even elements in one register and the odd ones in the next, which
// takes shifts and masks where the order of memory would take shuffles. Folds do not care for the order.
template <typename Format>
struct Paired {
  using Stored = uint16_t;
  using Lane = float;
  static constexpr size_t kGroup = 2;
  static void load(const Stored* from, Floats* lanes) {
    Words words;
    __builtin_memcpy(&words, from, sizeof(words));
    lanes[0] = Format::to_float(words & 0xffff);
    lanes[1] = Format::to_float(words >> 16);
  }
  static void store(const Floats* lanes, Stored* to) {
    const Words words = Format::from_float(lanes[0]) | Format::from_float(lanes[1]) << 16;
    __builtin_memcpy(to, &words, sizeof(words));
  }
};

// The same in the order of memory, for conversions.
template <typename Format>
struct Ordered {
  using Stored = uint16_t;
  using Lane = float;
  using Halves = Vector<uint16_t, kVectorBytes / sizeof(Lane)>;
  static constexpr size_t kGroup = 1;
  static void load(const Stored* from, Floats* lanes) {
    Halves halves;
    __builtin_memcpy(&halves, from, sizeof(halves));
    *lanes = Format::to_float(__builtin_convertvector(halves, Words));
  }
  static void store(const Floats* lanes, Stored* to) {
    const Halves halves = __builtin_convertvector(Format::from_float(*lanes), Halves);
    __builtin_memcpy(to, &halves, sizeof(halves));
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
using Wrapping = Register<typename UnsignedOf<Lane>::Type>;

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

// Not inlined: a conversion to float64 and back for each of up to 256 lanes would bury the loops that call it.
template <typename T>
__attribute__((noinline)) void scale_integers(T* values, size_t count, const Scaling& scaling) {
  const double factor = scaling.factor;
  const double divisor = static_cast<double>(scaling.divisor);
  for (size_t i = 0; i < count; ++i) {
    values[i] = truncated<T>(static_cast<double>(values[i]) * factor / divisor);
  }
}

template <typename Lane, typename V>
inline V scaled(V lanes, const Scaling& scaling) {
  const V multiplied = lanes * static_cast<Lane>(scaling.factor);
  const Lane divisor = static_cast<Lane>(scaling.divisor);
  return scaling.kind == Scaling::Kind::kDivide ? multiplied / divisor : multiplied * (1 / divisor);
}

// ---- Packs and the loops over them.

template <typename Element>
struct Pack {
  using Stored = typename Element::Stored;
  using Lanes = Register<typename Element::Lane>;
  static constexpr size_t kVectors = 4;  // enough to hide the latency of an addition
  static constexpr size_t kCount = kVectors * (kVectorBytes / sizeof(typename Element::Lane));
  static constexpr size_t kGroups = kVectors / Element::kGroup;

  Lanes lanes[kVectors];

  static Pack load(const Stored* from) {
    Pack pack;
#pragma GCC unroll 4
    for (size_t i = 0; i < kGroups; ++i) {
      Element::load(from + i * (kCount / kGroups), pack.lanes + i * Element::kGroup);
    }
    return pack;
  }

  void store(Stored* to) const {
#pragma GCC unroll 4
    for (size_t i = 0; i < kGroups; ++i) {
      Element::store(lanes + i * Element::kGroup, to + i * (kCount / kGroups));
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
    using Lane = typename Element::Lane;
    if constexpr (kIsFloat<Lane>) {
#pragma GCC unroll 4
      for (size_t i = 0; i < kVectors; ++i) {
        lanes[i] = scaled<Lane>(lanes[i], scaling);
      }
    } else {
      Lane values[kCount];
      __builtin_memcpy(values, lanes, sizeof(values));
      scale_integers(values, kCount, scaling);
      __builtin_memcpy(lanes, values, sizeof(values));
    }
  }
};

// One pack's way: load(k) gives it from input k, store(pack, k) puts it to output k.
template <typename Operation, typename Load, typename Store>
inline void fold_pack(const Load& load, size_t input_count, const Store& store, size_t output_count,
                      const Scaling& scaling) {
  auto pack = load(0);
  for (size_t k = 1; k < input_count; ++k) {
    pack.template combine<Operation>(load(k));
  }
  if (scaling.kind != Scaling::Kind::kNone) {
    pack.scale(scaling);
  }
  for (size_t k = 0; k < output_count; ++k) {
    store(pack, k);
  }
}

template <typename Element, typename Operation>
void fold(const void* const* inputs, size_t input_count, void* const* outputs, size_t output_count, size_t count,
          const Scaling& scaling) {
  using P = Pack<Element>;
  size_t at = 0;
  const auto input = [&](size_t k) { return static_cast<const typename Element::Stored*>(inputs[k]) + at; };
  const auto output = [&](size_t k) { return static_cast<typename Element::Stored*>(outputs[k]) + at; };

  const auto load = [&](size_t k) { return P::load(input(k)); };
  const auto store = [&](const P& pack, size_t k) { pack.store(output(k)); };
  for (; at + P::kCount <= count; at += P::kCount) {
    fold_pack<Operation>(load, input_count, store, output_count, scaling);
  }

  const size_t rest = count - at;
  if (rest > 0) {
    const auto load_rest = [&](size_t k) { return P::load_some(input(k), rest); };
    const auto store_rest = [&](const P& pack, size_t k) { pack.store_some(output(k), rest); };
    fold_pack<Operation>(load_rest, input_count, store_rest, output_count, scaling);
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

// ---- Adasum. Elements are computed with in float64.

template <typename T>
struct Widened {
  static constexpr size_t kLanes = 8;  // of a sum; the same for every instruction set, and so its bits
  static constexpr size_t kWidth = kVectorBytes / sizeof(double);
  static constexpr size_t kVectors = kLanes / kWidth;
  using Doubles = Register<double>;
  using Narrow = Vector<T, kWidth>;

  Doubles lanes[kVectors] = {};

  static Widened load(const T* from) {
    Widened wide;
#pragma GCC unroll 4
    for (size_t i = 0; i < kVectors; ++i) {
      Narrow narrow;
      __builtin_memcpy(&narrow, from + i * kWidth, sizeof(narrow));
      wide.lanes[i] = __builtin_convertvector(narrow, Doubles);
    }
    return wide;
  }

  // The first `count` elements; the others are zero.
  static Widened load_some(const T* from, size_t count) {
    T buffer[kLanes] = {};
    __builtin_memcpy(buffer, from, count * sizeof(T));
    return load(buffer);
  }

  void store(T* to) const {
#pragma GCC unroll 4
    for (size_t i = 0; i < kVectors; ++i) {
      const Narrow narrow = __builtin_convertvector(lanes[i], Narrow);
      __builtin_memcpy(to + i * kWidth, &narrow, sizeof(narrow));
    }
  }

  void store_some(T* to, size_t count) const {
    T buffer[kLanes];
    store(buffer);
    __builtin_memcpy(to, buffer, count * sizeof(T));
  }

  void add_product(const Widened& a, const Widened& b) {
#pragma GCC unroll 4
    for (size_t i = 0; i < kVectors; ++i) {
      lanes[i] += a.lanes[i] * b.lanes[i];
    }
  }

  double total() const {
    double each[kLanes];
    __builtin_memcpy(each, lanes, sizeof(each));
    return ((each[0] + each[4]) + (each[2] + each[6])) + ((each[1] + each[5]) + (each[3] + each[7]));
  }
};

template <typename T>
Products multiply(const void* a, const void* b, size_t count) {
  using W = Widened<T>;
  const auto* from_a = static_cast<const T*>(a);
  const auto* from_b = static_cast<const T*>(b);
  W dot;
  W a_squared;
  W b_squared;
  const auto add = [&](const W& wide_a, const W& wide_b) {
    dot.add_product(wide_a, wide_b);
    a_squared.add_product(wide_a, wide_a);
    b_squared.add_product(wide_b, wide_b);
  };
  size_t at = 0;
  for (; at + W::kLanes <= count; at += W::kLanes) {
    add(W::load(from_a + at), W::load(from_b + at));
  }
  add(W::load_some(from_a + at, count - at), W::load_some(from_b + at, count - at));
  return {dot.total(), a_squared.total(), b_squared.total()};
}

template <typename T>
void blend(const void* a, const void* b, const Factors& factors, void* sum, size_t count) {
  using W = Widened<T>;
  const auto* from_a = static_cast<const T*>(a);
  const auto* from_b = static_cast<const T*>(b);
  auto* const to = static_cast<T*>(sum);
  const auto blended = [&](W wide_a, const W& wide_b) {
#pragma GCC unroll 4
    for (size_t i = 0; i < W::kVectors; ++i) {
      wide_a.lanes[i] = wide_a.lanes[i] * factors.a + wide_b.lanes[i] * factors.b;
    }
    return wide_a;
  };
  size_t at = 0;
  for (; at + W::kLanes <= count; at += W::kLanes) {
    blended(W::load(from_a + at), W::load(from_b + at)).store(to + at);
  }
  blended(W::load_some(from_a + at, count - at), W::load_some(from_b + at, count - at)).store_some(to + at, count - at);
}

}  // namespace
}  // namespace farandole::reduce

#include "reduce/quantize_impl.h"

namespace farandole::reduce {
namespace {

// ---- The table.

template <typename Element>
constexpr void enter(Kernels& kernels, Dtype dtype) noexcept {
  Fold* folds = kernels.fold[static_cast<size_t>(dtype)];
  folds[static_cast<size_t>(Op::kSum)] = fold<Element, Sum>;
  folds[static_cast<size_t>(Op::kMin)] = fold<Element, Min>;
  folds[static_cast<size_t>(Op::kMax)] = fold<Element, Max>;
  folds[static_cast<size_t>(Op::kProduct)] = fold<Element, Product>;
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
  enter<Paired<Bfloat16Format>>(kernels, Dtype::kBf16);
  // On 0 and 1, "or" is the larger and "and" the smaller.
  Fold* folds = kernels.fold[static_cast<size_t>(Dtype::kBool)];
  folds[static_cast<size_t>(Op::kSum)] = folds[static_cast<size_t>(Op::kMax)] = fold<Boolean, Max>;
  folds[static_cast<size_t>(Op::kProduct)] = folds[static_cast<size_t>(Op::kMin)] = fold<Boolean, Min>;
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
