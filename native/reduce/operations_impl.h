// Operations on two registers of lanes. A part of kernels_impl.h, whose head says how and why this is compiled several
// times.
#pragma once

#include <type_traits>

#include "reduce/registers_impl.h"

namespace farandole::reduce {
namespace {

template <typename Lane>
inline constexpr bool kIsFloat = std::is_floating_point_v<Lane>;

// The unsigned type of the same size; of a float itself.
template <typename Lane>
using UnsignedOf =
    typename std::conditional_t<kIsFloat<Lane>, std::type_identity<Lane>, std::make_unsigned<Lane>>::type;

// The type in which `Lane` overflows without undefined behaviour.
template <typename Lane>
using Wrapping = Register<UnsignedOf<Lane>>;

struct Sum {
  template <typename Lane, typename V>
  static V apply(V a, V b) {
    return bits_as<V>(bits_as<Wrapping<Lane>>(a) + bits_as<Wrapping<Lane>>(b));
  }
};

struct Product {
  template <typename Lane, typename V>
  static V apply(V a, V b) {
    if constexpr (sizeof(Lane) == 1) {
      return bits_as<V>(of_bytes(bits_as<Register<uint16_t>>(a), bits_as<Register<uint16_t>>(b)));
    } else {
      return bits_as<V>(bits_as<Wrapping<Lane>>(a) * bits_as<Wrapping<Lane>>(b));
    }
  }
  // No processor multiplies bytes. Of 16-bit products, the lower byte is that of the lower bytes; and it is in the
  // upper byte when one factor is there.
  static Register<uint16_t> of_bytes(Register<uint16_t> a, Register<uint16_t> b) {
    return ((a * b) & 0xff) | (a >> 8) * (b & 0xff00);
  }
};

// A NaN wins from either side: as `a` by the test, as `b` because it compares false.
struct Min {
  template <typename Lane, typename V>
  static V apply(V a, V b) {
    if constexpr (kIsFloat<Lane>) {
      return ((a < b) | (a != a)) ? a : b;
    } else {
      return a < b ? a : b;
    }
  }
};

struct Max {
  template <typename Lane, typename V>
  static V apply(V a, V b) {
    if constexpr (kIsFloat<Lane>) {
      return ((a > b) | (a != a)) ? a : b;
    } else {
      return a > b ? a : b;
    }
  }
};

// On 0 and 1, "or" is the larger and "and" the smaller.
struct Or : Max {};
using And = Min;

// Only sums are averaged.
template <typename Operation>
inline constexpr bool kIsAveraged = std::is_same_v<Operation, Sum> || std::is_same_v<Operation, Or>;

// The smaller or larger of 16-bit floats, by their keys.
template <bool kLargest>
struct ExtremeByKey {
  template <typename Lane, typename V>
  static V apply(const V& a, const V& b) {
    const auto first = kLargest ? a.keys > b.keys : a.keys < b.keys;
    return {first ? a.bits : b.bits, first ? a.keys : b.keys};
  }
};

}  // namespace
}  // namespace farandole::reduce
