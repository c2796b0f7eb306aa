// Conversion between the 16-bit floats and float32. A part of kernels_impl.h, whose head says how and why this is
// compiled several times.
#pragma once

#include "reduce/elements_impl.h"

namespace farandole::reduce {
namespace {

// One Packed of 16-bit floats, and as many float32.
template <typename Element>
struct Conversion {
  using Small = typename Element::Packed;
  using Large = Raw<kVectorBytes>;
  static constexpr size_t kCount = sizeof(Large) / sizeof(float);

  static Large widened(const Small& small) {
    Floats lanes;
    Element::unpack(small, &lanes);
    return bits_as<Large>(lanes);
  }
  static Small narrowed(const Large& large) {
    const auto lanes = bits_as<Floats>(large);
    return Element::pack(&lanes);
  }
};

// Applies `change`, which converts a From to a To, to `count` elements; a From and a To hold `kCount` elements each.
template <size_t kCount, typename From, typename To, typename Change>
inline void change_row(const unsigned char* from, unsigned char* to, size_t count, const Change& change) {
  constexpr size_t kFrom = sizeof(From) / kCount;
  constexpr size_t kTo = sizeof(To) / kCount;
  size_t at = 0;
  for (; at + 4 * kCount <= count; at += 4 * kCount) {
#pragma GCC unroll 4
    for (size_t i = at; i < at + 4 * kCount; i += kCount) {
      store_raw(change(load_raw<From>(from + i * kFrom)), to + i * kTo);
    }
  }
  for (; at + kCount <= count; at += kCount) {
    store_raw(change(load_raw<From>(from + at * kFrom)), to + at * kTo);
  }
  if (at < count) {
    store_part(change(load_part<From>(from + at * kFrom, (count - at) * kFrom)), to + at * kTo, (count - at) * kTo);
  }
}

template <typename Element>
void widen(const void* source, void* destination, size_t count) {
  using C = Conversion<Element>;
  change_row<C::kCount, typename C::Small, typename C::Large>(
      static_cast<const unsigned char*>(source), static_cast<unsigned char*>(destination), count,
      [](const typename C::Small& small) { return C::widened(small); });
}

template <typename Element>
void narrow(const void* source, void* destination, size_t count) {
  using C = Conversion<Element>;
  change_row<C::kCount, typename C::Large, typename C::Small>(
      static_cast<const unsigned char*>(source), static_cast<unsigned char*>(destination), count,
      [](const typename C::Large& large) { return C::narrowed(large); });
}

}  // namespace
}  // namespace farandole::reduce
