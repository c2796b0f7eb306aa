// The arithmetic of the kernels a second time, one element after the other and as plainly as possible:
// 16-bit floats go through frexp-like arithmetic on double instead of bit tricks.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "reduce/kernels.h"

namespace farandole::reduce::oracle {

// A binary float of 16 bits with `kFraction` bits of fraction; the exponent has the rest.
template <int kFraction>
struct Small {
  uint16_t bits;

  static constexpr int kExponentBits = 15 - kFraction;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kInfinity = ((1 << kExponentBits) - 1) << kFraction;

  static Small from(float value) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) {
      return {static_cast<uint16_t>(sign | kInfinity | 1 << (kFraction - 1))};
    }
    const double magnitude = std::fabs(static_cast<double>(value));
    if (std::isinf(value) || magnitude >= std::ldexp(2.0, kBias)) {
      return {static_cast<uint16_t>(sign | kInfinity)};
    }
    const int exponent = magnitude == 0 ? 1 - kBias : std::max(std::ilogb(magnitude), 1 - kBias);
    // nearbyint rounds halves to even. One more bit of fraction than fits carries into the exponent.
    const int fraction = static_cast<int>(std::nearbyint(std::ldexp(magnitude, kFraction - exponent)));
    return {static_cast<uint16_t>(sign | (((exponent + kBias - 1) << kFraction) + fraction))};
  }

  float value() const {
    const int magnitude = bits & 0x7fff;
    const float sign = bits & 0x8000 ? -1.0f : 1.0f;
    if (magnitude >= kInfinity) {
      return magnitude == kInfinity ? sign * std::numeric_limits<float>::infinity()
                                    : std::numeric_limits<float>::quiet_NaN();
    }
    const int exponent = magnitude >> kFraction;
    const int fraction = magnitude & ((1 << kFraction) - 1);
    const int whole = exponent == 0 ? fraction : fraction + (1 << kFraction);
    return sign * static_cast<float>(std::ldexp(whole, std::max(exponent, 1) - kBias - kFraction));
  }
};

using Float16 = Small<10>;
using Bfloat16 = Small<7>;
struct Boolean {
  uint8_t byte;
};

template <typename T>
inline constexpr bool kIsSmall = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;

// The type that a T is computed in, and the ways there and back.
template <typename T>
auto accumulator(T value) {
  if constexpr (kIsSmall<T>) {
    return value.value();
  } else if constexpr (std::is_same_v<T, Boolean>) {
    return value.byte != 0;
  } else {
    return value;
  }
}
template <typename T>
using Accumulator = decltype(accumulator(T{}));

template <typename T>
T rounded(Accumulator<T> value) {
  if constexpr (kIsSmall<T>) {
    return T::from(value);
  } else if constexpr (std::is_same_v<T, Boolean>) {
    return {static_cast<uint8_t>(value ? 1 : 0)};
  } else {
    return value;
  }
}

template <std::floating_point A>
A combined(Op op, A a, A b) {
  if (op == Op::kSum || op == Op::kProduct) {
    return op == Op::kSum ? a + b : a * b;
  }
  if (std::isnan(a) || std::isnan(b)) {
    return std::isnan(a) ? a : b;
  }
  return (op == Op::kMin ? a < b : a > b) ? a : b;
}

inline bool combined(Op op, bool a, bool b) { return op == Op::kSum || op == Op::kMax ? a || b : a && b; }

// Sums and products modulo 2^64, cut to the type: what wrapping means.
template <std::integral A>
A combined(Op op, A a, A b) {
  switch (op) {
    case Op::kSum:
      return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    case Op::kProduct:
      return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    case Op::kMin:
      return std::min(a, b);
    default:
      return std::max(a, b);
  }
}

template <std::floating_point A>
A scaled(A value, const Scale& scale) {
  return value * static_cast<A>(scale.factor) / static_cast<A>(scale.divisor);
}

template <std::integral A>
A scaled(A value, const Scale& scale) {
  // What a bool is computed in has the range of a byte.
  using Integer = std::conditional_t<std::is_same_v<A, bool>, uint8_t, A>;
  const double exact = std::trunc(static_cast<double>(value) * scale.factor / static_cast<double>(scale.divisor));
  if (std::isnan(exact)) {
    return A{0};
  }
  // The largest int64_t rounds up on its way to double, so that a comparison with it must be "not less".
  if (exact >= static_cast<double>(std::numeric_limits<Integer>::max())) {
    return static_cast<A>(std::numeric_limits<Integer>::max());
  }
  if (exact <= static_cast<double>(std::numeric_limits<Integer>::min())) {
    return static_cast<A>(std::numeric_limits<Integer>::min());
  }
  return static_cast<A>(static_cast<Integer>(exact));
}

// The dtype of an oracle type.
template <typename T>
constexpr Dtype dtype() {
  if constexpr (std::is_same_v<T, uint8_t>) return Dtype::kU8;
  if constexpr (std::is_same_v<T, int8_t>) return Dtype::kI8;
  if constexpr (std::is_same_v<T, int16_t>) return Dtype::kI16;
  if constexpr (std::is_same_v<T, int32_t>) return Dtype::kI32;
  if constexpr (std::is_same_v<T, int64_t>) return Dtype::kI64;
  if constexpr (std::is_same_v<T, Float16>) return Dtype::kF16;
  if constexpr (std::is_same_v<T, Bfloat16>) return Dtype::kBf16;
  if constexpr (std::is_same_v<T, float>) return Dtype::kF32;
  if constexpr (std::is_same_v<T, double>) return Dtype::kF64;
  if constexpr (std::is_same_v<T, Boolean>) return Dtype::kBool;
}

}  // namespace farandole::reduce::oracle
