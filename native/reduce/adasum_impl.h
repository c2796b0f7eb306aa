// The arithmetic of Adasum; elements are computed with in float64. A part of kernels_impl.h, whose head says how and
// why this is compiled several times.
#pragma once

#include "reduce/adasum.h"
#include "reduce/registers_impl.h"

namespace farandole::reduce {
namespace {

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
