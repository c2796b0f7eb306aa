// Scaling of results. A part of kernels_impl.h, whose head says how and why this is compiled several
// times.
//
// A scaler is made once a fold; apply() scales one register of lanes. NoScaler is for folds without.
#pragma once

#include "reduce/operations_impl.h"
#include "reduce/variant.h"

namespace farandole::reduce {
namespace {

struct NoScaler {
  explicit NoScaler(const Scaling& scaling) {}
  template <typename V>
  V apply(const V& value) const {
    return value;
  }
};

template <typename Lane>
class FloatScaler {
 public:
  explicit FloatScaler(const Scaling& scaling)
      : divides_(scaling.kind == Scaling::Kind::kDivide),
        factor_(static_cast<Lane>(scaling.factor)),
        divisor_(static_cast<Lane>(scaling.divisor)) {}

  Register<Lane> apply(Register<Lane> lanes) const { return divides_ ? lanes * factor_ / divisor_ : lanes * factor_; }

 private:
  const bool divides_;
  const Lane factor_;
  const Lane divisor_;
};

// ---- Integers, in float64 as the contract says, one by one.

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

// Not inlined: it would bury the loops that call it.
template <typename T>
__attribute__((noinline)) Register<T> scaled_in_float64(Register<T> lanes, const Scaling& scaling) {
  const double factor = scaling.factor;
  const double divisor = scaling.kind == Scaling::Kind::kDivide ? static_cast<double>(scaling.divisor) : 1.0;
  for (size_t i = 0; i < kVectorBytes / sizeof(T); ++i) {
    lanes[i] = truncated<T>(static_cast<double>(lanes[i]) * factor / divisor);
  }
  return lanes;
}

template <typename T>
class SmallIntegerScaler {
 public:
  explicit SmallIntegerScaler(const Scaling& scaling) : scaling_(scaling) {}
  Register<T> apply(Register<T> lanes) const { return scaled_in_float64<T>(lanes, scaling_); }

 private:
  const Scaling scaling_;
};

// ---- Averages of integers of 32 bits and less. A quotient of two such numbers that is not an integer is further from
// one than float64 rounds, so that the contract's float64 gives the integer quotient, and so does any exact way.

// Takes a register of small integers apart into registers of `Wide` ones, applies `function` to each of these, and puts
// the low bits of what it returns where the small ones were.
template <typename T, typename Wide, typename Function>
inline Register<T> each_as(Register<T> lanes, const Function& function) {
  using Unsigned = Wrapping<Wide>;
  constexpr bool kSigned = static_cast<T>(-1) < 0;
  constexpr size_t kWide = sizeof(Wide);
  constexpr size_t kParts = kWide / sizeof(T);
  constexpr auto kAbove = static_cast<int>(8 * (sizeof(Wide) - sizeof(T)));
  constexpr auto kMask = static_cast<UnsignedOf<Wide>>(~uint64_t{0} >> (64 - 8 * sizeof(T)));
  Unsigned together = {};
#pragma GCC unroll 4
  for (size_t part = 0; part < kParts; ++part) {
    const auto place = static_cast<int>(8 * sizeof(T) * part);
    const Unsigned highest = bits_as<Unsigned>(lanes) << (kAbove - place);
    const auto wide = kSigned ? bits_as<Register<Wide>>(highest) >> kAbove : bits_as<Register<Wide>>(highest >> kAbove);
    const auto result = bits_as<Unsigned>(function(wide));
    together |= part + 1 < kParts ? (result & kMask) << place : result << place;
  }
  return bits_as<Register<T>>(together);
}

// The quotients by a power of two: a shift, which rounds down, after adding what makes it round negative numbers up.
template <typename Wide>
inline Register<Wide> shifted(Register<Wide> lanes, int shift) {
  constexpr auto kSign = static_cast<int>(8 * sizeof(Wide) - 1);
  const auto below = static_cast<UnsignedOf<Wide>>((uint64_t{1} << shift) - 1);
  const auto rounding = bits_as<Wrapping<Wide>>(lanes >> kSign) & below;
  return bits_as<Register<Wide>>(bits_as<Wrapping<Wide>>(lanes) + rounding) >> shift;
}

// The next float above 1/divisor. Its product with a multiple of the divisor is not below the quotient, and with the
// number before the next multiple not as much as the next integer: for numbers of 16 bits in float32, and of 32 bits in
// float64, it truncates to the quotient.
inline float reciprocal_above(float divisor) { return bits_as<float>(bits_as<uint32_t>(1 / divisor) + 1); }
inline double reciprocal_above(double divisor) { return bits_as<double>(bits_as<uint64_t>(1 / divisor) + 1); }

inline Integers truncated_product(Integers lanes, float reciprocal) {
  return __builtin_convertvector(__builtin_convertvector(lanes, Floats) * reciprocal, Integers);
}

inline Integers truncated_product(Integers lanes, double reciprocal) {
  using Half = Vector<int32_t, kVectorBytes / sizeof(double)>;
  struct Halves {
    Half half[2];
  };
  auto halves = bits_as<Halves>(lanes);
  for (Half& half : halves.half) {
    half = __builtin_convertvector(__builtin_convertvector(half, Register<double>) * reciprocal, Half);
  }
  return bits_as<Integers>(halves);
}

// Bytes have no shifts of their own.
template <typename T>
class ShiftScaler {
 public:
  explicit ShiftScaler(const Scaling& scaling) : shift_(__builtin_ctzll(static_cast<uint64_t>(scaling.divisor))) {}
  Register<T> apply(Register<T> lanes) const {
    using Wide = std::conditional_t<sizeof(T) == 1, int16_t, T>;
    return each_as<T, Wide>(lanes, [&](Register<Wide> wide) { return shifted<Wide>(wide, shift_); });
  }

 private:
  const int shift_;
};

template <typename T>
class ReciprocalScaler {
 public:
  explicit ReciprocalScaler(const Scaling& scaling)
      : reciprocal_(reciprocal_above(static_cast<Real>(scaling.divisor))) {}
  Register<T> apply(Register<T> lanes) const {
    return each_as<T, int32_t>(lanes, [&](Integers wide) { return truncated_product(wide, reciprocal_); });
  }

 private:
  using Real = std::conditional_t<sizeof(T) <= 2, float, double>;
  const Real reciprocal_;
};

// Whether an average is a shift of a T.
template <typename T>
inline bool shifts(const Scaling& scaling) {
  return scaling.kind == Scaling::Kind::kMultiply && scaling.divisor < int64_t{1} << (8 * sizeof(T) - 1);
}

// ---- 64-bit integers, in float64 as the contract says, a register at a time.

inline Register<double> to_float64(Register<int64_t> lanes) {
  using Bits = Register<uint64_t>;
  const Bits bits = bits_as<Bits>(lanes);
  // The lower half as 2^52 + low, and the upper as 2^84 + 2^63 + high * 2^32, by writing them into fractions. The
  // difference takes the additions away again and is exact; the sum rounds, once.
  const auto low = bits_as<Register<double>>((bits & 0xffffffff) | 0x4330000000000000);
  const auto high = bits_as<Register<double>>((bits >> 32) ^ 0x4530000080000000);
  return (high - (0x1p84 + 0x1p63 + 0x1p52)) + low;
}

// Not inlined: rarely needed where an instruction set has conversions of its own.
__attribute__((noinline)) Register<int64_t> truncated_each(Register<double> values) {
  Register<int64_t> lanes = {};
  for (size_t i = 0; i < kVectorBytes / sizeof(double); ++i) {
    lanes[i] = truncated<int64_t>(values[i]);
  }
  return lanes;
}

class Int64Scaler {
 public:
  explicit Int64Scaler(const Scaling& scaling) : in_float64_(scaling) {}
  Register<int64_t> apply(Register<int64_t> lanes) const {
    return Isa::truncated(in_float64_.apply(to_float64(lanes)), truncated_each);
  }

 private:
  const FloatScaler<double> in_float64_;
};

template <typename Lane>
inline constexpr bool kIsSmallInteger = !kIsFloat<Lane> && sizeof(Lane) < 8;

// The scaler for every case.
template <typename Lane>
using ScalerOf = std::conditional_t<kIsFloat<Lane>, FloatScaler<Lane>,
                                    std::conditional_t<kIsSmallInteger<Lane>, SmallIntegerScaler<Lane>, Int64Scaler>>;

}  // namespace
}  // namespace farandole::reduce
