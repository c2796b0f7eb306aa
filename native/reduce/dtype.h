// Element types and reduction operations. The numbers are part of the C ABI and of the wire format;
// they are the ones Horovod's users know (bfloat16, which it lacks, comes after).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace farandole::reduce {

enum class Dtype : uint8_t {
  kU8 = 0,
  kI8 = 1,
  kI16 = 3,
  kI32 = 4,
  kI64 = 5,
  kF16 = 6,
  kF32 = 7,
  kF64 = 8,
  kBool = 9,
  kBf16 = 10,
};

enum class Op : uint8_t { kSum = 1, kMin = 3, kMax = 4, kProduct = 5 };

// The dtype or op with this number, or nothing.
std::optional<Dtype> dtype_from(uint32_t number) noexcept;
std::optional<Op> op_from(uint32_t number) noexcept;

size_t size_of(Dtype dtype) noexcept;
const char* name_of(Dtype dtype) noexcept;  // "float32"
const char* name_of(Op op) noexcept;        // "Sum"

// The type in which sums of `dtype` are held: float32 for the 16-bit floats, otherwise itself.
Dtype accumulator_of(Dtype dtype) noexcept;

}  // namespace farandole::reduce
