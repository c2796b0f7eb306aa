// The fold. A part of kernels_impl.h, whose head says how and why this is compiled several times.
//
// A *pack* is some registers of each input. It is loaded from the first input, combined with the same pack of every
// other input, scaled, and stored to all outputs, before the next pack is looked at. So nothing is written twice, the
// accumulator never leaves the registers, any number of inputs and outputs runs through one loop, and an output may be
// one of the inputs. What is left after the last whole pack goes register by register, and in the end as a part of one.
#pragma once

#include "reduce/elements_impl.h"
#include "reduce/scaling_impl.h"

namespace farandole::reduce {
namespace {

// As many elements as `kUnits` Packed hold.
template <typename Element, size_t kUnits>
struct Pack {
  using Stored = typename Element::Stored;
  using Lane = typename Element::Lane;
  using Packed = typename Element::Packed;
  using Value = typename Element::Value;
  static constexpr size_t kUnitCount = sizeof(Packed) / sizeof(Stored);
  static constexpr size_t kCount = kUnits * kUnitCount;  // elements
  static constexpr size_t kValues = kUnits * Element::kGroup;

  Value values[kValues];

  static Pack load(const Stored* from) {
    Pack pack;
#pragma GCC unroll 4
    for (size_t i = 0; i < kUnits; ++i) {
      Element::unpack(load_raw<Packed>(from + i * kUnitCount), pack.values + i * Element::kGroup);
    }
    return pack;
  }

  void store(Stored* to) const {
#pragma GCC unroll 4
    for (size_t i = 0; i < kUnits; ++i) {
      store_raw(Element::pack(values + i * Element::kGroup), to + i * kUnitCount);
    }
  }

  // Past the caches. `to` is aligned to a Packed.
  void stream(Stored* to) const {
#pragma GCC unroll 4
    for (size_t i = 0; i < kUnits; ++i) {
      Isa::stream(Element::pack(values + i * Element::kGroup), to + i * kUnitCount);
    }
  }

  // Stores the first `count` elements of one unit, as load_part loads them.
  static Pack load_some(const Stored* from, size_t count) {
    static_assert(kUnits == 1);
    Pack pack;
    Element::unpack(load_part<Packed>(reinterpret_cast<const unsigned char*>(from), count * sizeof(Stored)),
                    pack.values);
    return pack;
  }

  void store_some(Stored* to, size_t count) const {
    static_assert(kUnits == 1);
    store_part(Element::pack(values), reinterpret_cast<unsigned char*>(to), count * sizeof(Stored));
  }

  template <typename Operation>
  void combine(const Pack& other) {
#pragma GCC unroll 4
    for (size_t i = 0; i < kValues; ++i) {
      values[i] = Operation::template apply<Lane>(values[i], other.values[i]);
    }
  }

  template <typename Scaler>
  void scale(const Scaler& scaler) {
#pragma GCC unroll 4
    for (size_t i = 0; i < kValues; ++i) {
      values[i] = scaler.apply(values[i]);
    }
  }
};

// Folds one pack: load(k) returns the pack of input k, store(pack, k) writes it to output k.
template <typename Operation, typename Load, typename Store, typename Scaler>
inline void fold_pack(const FoldJob& job, const Load& load, const Store& store, const Scaler& scaler) {
  auto pack = load(0);
  for (size_t k = 1; k < job.input_count; ++k) {
    pack.template combine<Operation>(load(k));
  }
  pack.scale(scaler);
  for (size_t k = 0; k < job.output_count; ++k) {
    store(pack, k);
  }
}

// Enough to hide the latency of an addition, few enough to stay in registers.
inline constexpr size_t kPackBytes = 4 * kVectorBytes;

template <typename Element, typename Operation, typename Scaler>
void fold_row(const FoldJob& given, const Scaling& scaling) {
  using Stored = typename Element::Stored;
  using Whole = Pack<Element, kPackBytes / sizeof(typename Element::Value) / Element::kGroup>;
  using Unit = Pack<Element, 1>;
  const FoldJob job = given;  // a copy that no store to an output can alias
  const Scaler scaler(scaling);
  size_t at = job.from;
  const auto input = [&](size_t k) { return static_cast<const Stored*>(job.inputs[k]) + at; };
  const auto output = [&](size_t k) { return static_cast<Stored*>(job.outputs[k]) + at; };

  const auto load = [&](size_t k) { return Whole::load(input(k)); };
  const auto store = [&](const Whole& pack, size_t k) {
    if (job.streams) {
      pack.stream(output(k));
    } else {
      pack.store(output(k));
    }
  };
  for (; at + Whole::kCount <= job.to; at += Whole::kCount) {
    fold_pack<Operation>(job, load, store, scaler);
  }
  if (job.streams) {
    Isa::fence();
  }

  const auto load_unit = [&](size_t k) { return Unit::load(input(k)); };
  const auto store_unit = [&](const Unit& unit, size_t k) { unit.store(output(k)); };
  for (; at + Unit::kCount <= job.to; at += Unit::kCount) {
    fold_pack<Operation>(job, load_unit, store_unit, scaler);
  }

  const size_t rest = job.to - at;
  if (rest > 0) {
    const auto load_rest = [&](size_t k) { return Unit::load_some(input(k), rest); };
    const auto store_rest = [&](const Unit& unit, size_t k) { unit.store_some(output(k), rest); };
    fold_pack<Operation>(job, load_rest, store_rest, scaler);
  }
}

template <typename Element, typename Operation>
void fold(const FoldJob& job, const Scaling& scaling) {
  using Lane = typename Element::Lane;
  if (scaling.kind == Scaling::Kind::kNone) {
    return fold_row<Element, Operation, NoScaler>(job, scaling);
  }
  if constexpr (kIsSmallInteger<Lane> && kIsAveraged<Operation>) {
    if (scaling.averages) {
      return shifts<Lane>(scaling) ? fold_row<Element, Operation, ShiftScaler<Lane>>(job, scaling)
                                   : fold_row<Element, Operation, ReciprocalScaler<Lane>>(job, scaling);
    }
  }
  fold_row<Element, Operation, ScalerOf<Lane>>(job, scaling);
}

// The smaller or larger of 16-bit floats, which only a scale needs as float32.
template <typename Element, typename Operation, uint16_t kInfinity, bool kLargest>
void fold_extreme(const FoldJob& job, const Scaling& scaling) {
  if (scaling.kind == Scaling::Kind::kNone) {
    fold_row<Keyed<kInfinity, kLargest>, ExtremeByKey<kLargest>, NoScaler>(job, scaling);
  } else {
    fold_row<Element, Operation, ScalerOf<typename Element::Lane>>(job, scaling);
  }
}

}  // namespace
}  // namespace farandole::reduce
