// Elements of every type as numbers, for tests.
#pragma once

#include <cstring>
#include <vector>

#include "reduce/kernels.h"

namespace farandole::testing {

using Bytes = std::vector<std::byte>;

// Sanitizers slow everything down tenfold or more, and what they look for does not depend on the element type.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr reduce::Dtype kAllDtypes[] = {reduce::Dtype::kBf16, reduce::Dtype::kF32};
inline constexpr reduce::Dtype kFloatDtypes[] = {reduce::Dtype::kBf16, reduce::Dtype::kF64};
#else
inline constexpr reduce::Dtype kAllDtypes[] = {
    reduce::Dtype::kU8,  reduce::Dtype::kI8,  reduce::Dtype::kI16, reduce::Dtype::kI32,  reduce::Dtype::kI64,
    reduce::Dtype::kF16, reduce::Dtype::kF32, reduce::Dtype::kF64, reduce::Dtype::kBool, reduce::Dtype::kBf16};
inline constexpr reduce::Dtype kFloatDtypes[] = {reduce::Dtype::kF16, reduce::Dtype::kBf16, reduce::Dtype::kF32,
                                                 reduce::Dtype::kF64};
#endif
inline constexpr reduce::Op kAllOps[] = {reduce::Op::kSum, reduce::Op::kMin, reduce::Op::kMax, reduce::Op::kProduct};

// Calls visit(T{}) with the type that elements of `dtype` have in C++; the 16-bit floats come as float.
template <typename Visit>
void with_type_of(reduce::Dtype dtype, Visit&& visit) {
  switch (reduce::accumulator_of(dtype)) {
    case reduce::Dtype::kU8:
    case reduce::Dtype::kBool:
      return visit(uint8_t{});
    case reduce::Dtype::kI8:
      return visit(int8_t{});
    case reduce::Dtype::kI16:
      return visit(int16_t{});
    case reduce::Dtype::kI32:
      return visit(int32_t{});
    case reduce::Dtype::kI64:
      return visit(int64_t{});
    case reduce::Dtype::kF64:
      return visit(double{});
    default:
      return visit(float{});
  }
}

// Numbers that `dtype` can hold, as its elements.
inline Bytes encode(reduce::Dtype dtype, const std::vector<double>& numbers) {
  Bytes bytes(numbers.size() * reduce::size_of(dtype));
  with_type_of(dtype, [&]<typename T>(T) {
    const std::vector<T> elements(numbers.begin(), numbers.end());
    reduce::convert(reduce::accumulator_of(dtype), dtype, elements.data(), bytes.data(), elements.size());
  });
  return bytes;
}

inline std::vector<double> decode(reduce::Dtype dtype, const Bytes& bytes) {
  std::vector<double> numbers(bytes.size() / reduce::size_of(dtype));
  with_type_of(dtype, [&]<typename T>(T) {
    std::vector<T> elements(numbers.size());
    reduce::convert(dtype, reduce::accumulator_of(dtype), bytes.data(), elements.data(), elements.size());
    std::ranges::copy(elements, numbers.begin());
  });
  return numbers;
}

// Small numbers that every type holds, and whose sums and products of a few every type holds too.
inline std::vector<double> small_numbers(reduce::Dtype dtype, int rank, size_t count, int most = 3) {
  std::vector<double> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t number = (i * 7 + static_cast<size_t>(rank) * 3) % 5 % static_cast<size_t>(most);
    numbers[i] = static_cast<double>(dtype == reduce::Dtype::kBool ? number % 2 : number);
  }
  return numbers;
}

// What `inputs` make together: scaled one by one, reduced in their order, scaled again.
inline Bytes reduced(reduce::Dtype dtype, reduce::Op op, std::vector<Bytes> inputs, const reduce::Scale& prescale = {},
                     const reduce::Scale& postscale = {}) {
  const size_t count = inputs.front().size() / reduce::size_of(dtype);
  std::vector<const void*> addresses;
  for (Bytes& input : inputs) {
    reduce::scale_to(dtype, input.data(), input.data(), count, prescale);
    addresses.push_back(input.data());
  }
  Bytes result(inputs.front().size());
  void* const output = result.data();
  reduce::reduce_to(dtype, op, addresses, {&output, 1}, count, postscale);
  return result;
}

}  // namespace farandole::testing
