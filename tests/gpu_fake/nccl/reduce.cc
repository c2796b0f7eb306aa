// The arithmetic of the fake NCCL.
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "nccl/wire.h"

namespace nccl_fake {
namespace {

constexpr uint64_t kBlock = 256;  // elements that begin with the same rank

struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

float load(Bfloat16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

float load(Float16 value) {
  const float sign = (value.bits & 0x8000) != 0 ? -1.0F : 1.0F;
  const int exponent = (value.bits >> 10) & 0x1F;
  const int mantissa = value.bits & 0x3FF;
  if (exponent == 31) {
    return mantissa != 0 ? NAN : sign * INFINITY;
  }
  return sign * (exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                               : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25));
}

template <typename T>
T load(T value) {
  return value;
}

void store(float value, Bfloat16& target) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) {
    target.bits = static_cast<uint16_t>((bits >> 16) | 0x40);
    return;
  }
  target.bits = static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

void store(float value, Float16& target) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const float size = std::fabs(value);
  if (std::isnan(value)) {
    target.bits = sign | 0x7E00;
  } else if (size >= 65520.0F) {
    target.bits = sign | 0x7C00;
  } else if (size < 6.103515625e-5F) {
    target.bits = static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(size, 24))));
  } else {
    int exponent = 0;
    const float fraction = std::frexp(size, &exponent);  // in [0.5, 1)
    // A fraction that is rounded up to 1 carries into the exponent, which is right.
    const auto mantissa = static_cast<int>(std::nearbyint(std::ldexp(fraction, 11))) - 1024;
    target.bits = static_cast<uint16_t>(sign | (((exponent + 14) << 10) + mantissa));
  }
}

template <typename T>
void store(T value, T& target) {
  target = value;
}

template <typename T>
using Computed = decltype(load(T{}));

template <typename T>
T element(const char* data, uint64_t i) {
  T value;
  std::memcpy(&value, data + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
T rounded(Computed<T> value) {
  T result{};
  store(value, result);
  return result;
}

template <typename C>
C combine(C a, C b, int op) {
  switch (op) {
    case kProd:
      if constexpr (std::is_integral_v<C>) {
        return static_cast<C>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
      } else {
        return a * b;
      }
    case kMax:
      return a < b ? b : a;
    case kMin:
      return b < a ? b : a;
    default:
      if constexpr (std::is_integral_v<C>) {
        return static_cast<C>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));  // wraps around
      } else {
        return a + b;
      }
  }
}

template <typename T>
Bytes reduce_as(const std::vector<Bytes>& inputs, int op, uint64_t count) {
  using C = Computed<T>;
  constexpr bool kIsInteger = std::is_integral_v<C>;
  const uint64_t size = inputs.size();
  const auto prepared = [&](uint64_t rank, uint64_t i) {
    const C value = load(element<T>(inputs[rank].data(), i));
    if constexpr (!kIsInteger) {
      if (op == kAvg) {
        return load(rounded<T>(value * load(rounded<T>(C{1} / static_cast<C>(size)))));
      }
    }
    return value;
  };
  Bytes result(count * sizeof(T));
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t first = i / kBlock % size;
    C sum = prepared(first, i);
    for (uint64_t k = 1; k < size; ++k) {
      sum = load(rounded<T>(combine<C>(sum, prepared((first + k) % size, i), op)));
    }
    if constexpr (kIsInteger) {
      if (op == kAvg) {
        sum = static_cast<C>(sum / static_cast<C>(size));
      }
    }
    const T value = rounded<T>(sum);
    std::memcpy(result.data() + i * sizeof(T), &value, sizeof(T));
  }
  return result;
}

template <typename T>
void scale_as(char* data, uint64_t count, const void* scalar) {
  T factor;
  std::memcpy(&factor, scalar, sizeof(T));
  for (uint64_t i = 0; i < count; ++i) {
    const T value = rounded<T>(combine<Computed<T>>(load(element<T>(data, i)), load(factor), kProd));
    std::memcpy(data + i * sizeof(T), &value, sizeof(T));
  }
}

template <typename Visit>
auto visit_type(int dtype, Visit&& visit) {
  switch (dtype) {
    case kInt8:
      return visit(int8_t{});
    case kInt32:
      return visit(int32_t{});
    case kUint32:
      return visit(uint32_t{});
    case kInt64:
      return visit(int64_t{});
    case kUint64:
      return visit(uint64_t{});
    case kFloat16:
      return visit(Float16{});
    case kFloat32:
      return visit(float{});
    case kFloat64:
      return visit(double{});
    case kBfloat16:
      return visit(Bfloat16{});
    default:
      return visit(uint8_t{});
  }
}

}  // namespace

Bytes reduce(const std::vector<Bytes>& inputs, int dtype, int op, uint64_t count) {
  return visit_type(dtype, [&](auto one) { return reduce_as<decltype(one)>(inputs, op, count); });
}

void scale(char* data, int dtype, uint64_t count, const void* scalar) {
  visit_type(dtype, [&](auto one) { scale_as<decltype(one)>(data, count, scalar); });
}

}  // namespace nccl_fake
