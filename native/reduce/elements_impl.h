// Element types: how elements in memory become the lanes of registers, on which arithmetic works. A part of
// kernels_impl.h, whose head says how and why this is compiled several times.
//
// An element type has
//   Stored, Lane      the type in memory, and the type of arithmetic
//   Packed            the Raw that is loaded and stored at once: one register, or what becomes one
//   Value, kGroup     what a Packed becomes: kGroup of these, mostly registers of lanes
//   unpack, pack      from a Packed to its values, and back
#pragma once

#include "reduce/registers_impl.h"

namespace farandole::reduce {
namespace {

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

// ---- Element types.

// A number whose type in memory is also that of arithmetic.
template <typename T>
struct Plain {
  using Stored = T;
  using Lane = T;
  using Value = Register<Lane>;
  using Packed = Raw<kVectorBytes>;
  static constexpr size_t kGroup = 1;
  static void unpack(const Packed& packed, Register<T>* lanes) { *lanes = bits_as<Register<T>>(packed); }
  static Packed pack(const Register<T>* lanes) { return bits_as<Packed>(*lanes); }
};

// A byte; anything but zero is true, and what we write is 0 or 1.
struct Boolean {
  using Stored = uint8_t;
  using Lane = uint8_t;
  using Value = Register<Lane>;
  using Packed = Raw<kVectorBytes>;
  static constexpr size_t kGroup = 1;
  static Register<Lane> normal(Register<Lane> lanes) { return bits_as<Register<Lane>>(lanes != 0) & 1; }
  static void unpack(const Packed& packed, Register<Lane>* lanes) { *lanes = normal(bits_as<Register<Lane>>(packed)); }
  static Packed pack(const Register<Lane>* lanes) { return bits_as<Packed>(normal(*lanes)); }
};

// 16 bits in memory, float32 in lanes; the even elements in one register and the odd ones in the next, which
// takes shifts and masks where the order of memory would take shuffles. For folds the order does not matter.
template <typename Format>
struct Paired {
  using Stored = uint16_t;
  using Lane = float;
  using Value = Register<Lane>;
  using Packed = Raw<kVectorBytes>;
  static constexpr size_t kGroup = 2;
  static void unpack(const Packed& packed, Floats* lanes) {
    const Words words = bits_as<Words>(packed);
    lanes[0] = Format::to_float(words & 0xffff);
    lanes[1] = Format::to_float(words >> 16);
  }
  static Packed pack(const Floats* lanes) {
    return bits_as<Packed>(Format::from_float(lanes[0]) | Format::from_float(lanes[1]) << 16);
  }
};

// The same for bfloat16, for results of arithmetic. There a NaN needs no care: it is quiet, and either the default or
// that of an operand (an element or a scale, see prepared() in kernels.cc), all of which have zeros in the bits that
// are cut off. Rounding carries nothing into its upper half.
struct PairedBfloat16 {
  using Stored = uint16_t;
  using Lane = float;
  using Value = Register<Lane>;
  using Packed = Raw<kVectorBytes>;
  static constexpr size_t kGroup = 2;
  static void unpack(const Packed& packed, Floats* lanes) {
    const Words words = bits_as<Words>(packed);
    lanes[0] = bits_as<Floats>(words << 16);
    lanes[1] = bits_as<Floats>(words & 0xffff0000);
  }
  static Words rounded(Floats value) {
    const Words bits = bits_as<Words>(value);
    return bits + ((bits >> 16) & 1) + 0x7fff;
  }
  static Packed pack(const Floats* lanes) {
    return bits_as<Packed>(rounded(lanes[0]) >> 16 | (rounded(lanes[1]) & 0xffff0000));
  }
};

// The same with lanes in the order of memory, for conversions.
template <typename Format>
struct Ordered {
  using Stored = uint16_t;
  using Lane = float;
  using Value = Register<Lane>;
  using Packed = Raw<kVectorBytes / 2>;
  using Halves = Vector<uint16_t, kVectorBytes / sizeof(Lane)>;
  static constexpr size_t kGroup = 1;
  static void unpack(const Packed& packed, Floats* lanes) {
    *lanes = Format::to_float(__builtin_convertvector(bits_as<Halves>(packed), Words));
  }
  static Packed pack(const Floats* lanes) {
    return bits_as<Packed>(__builtin_convertvector(Format::from_float(*lanes), Halves));
  }
};

// 16-bit floats for minimum and maximum: they are not converted to float32; their bits are compared as integers, a
// whole register at a time. A key is the magnitude with the sign in front of it, so that both zeros are 0. Above
// infinity come as many NaNs as the fraction has values, and as many below minus infinity; shifting all keys by this
// number wraps those of one sign around, so that they are next to the others, at the end where they win.
template <uint16_t kInfinity, bool kLargest>
struct Keyed {
  using Stored = uint16_t;
  using Lane = int16_t;
  using Packed = Raw<kVectorBytes>;
  struct Value {
    Register<Lane> bits;
    Register<Lane> keys;
  };
  static constexpr size_t kGroup = 1;
  static constexpr uint16_t kNans = 0x7fff - kInfinity;
  // There is one negative number more than positive ones, and no key is the least of them.
  static constexpr auto kShift = static_cast<uint16_t>(kLargest ? -(kNans + 1) : kNans);

  static void unpack(const Packed& packed, Value* value) {
    value->bits = bits_as<Register<Lane>>(packed);
    const auto keys = Isa::negated_where_negative(value->bits & 0x7fff, value->bits);
    value->keys = bits_as<Register<Lane>>(bits_as<Register<uint16_t>>(keys) + kShift);
  }
  static Packed pack(const Value* value) { return bits_as<Packed>(value->bits); }
};

}  // namespace
}  // namespace farandole::reduce
