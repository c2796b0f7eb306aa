#include "reduce/kernels.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "reduce/quantize.h"
#include "reduce/variant.h"

namespace farandole::reduce {
namespace {

const std::vector<const Variant*>& runnable_variants() {
  static const std::vector<const Variant*> runnable = [] {
    std::vector<const Variant*> found;
    const Variants built = built_variants();
    for (size_t i = 0; i < built.count; ++i) {
      if (built.first[i].runnable) {
        found.push_back(&built.first[i]);
      }
    }
    return found;
  }();
  return runnable;
}

const Variant* find_runnable(std::string_view name) {
  for (const Variant* variant : runnable_variants()) {
    if (variant->name == name) {
      return variant;
    }
  }
  return nullptr;
}

std::string runnable_names() {
  std::string names;
  for (const Variant* variant : runnable_variants()) {
    names += (names.empty() ? "" : ", ") + std::string(variant->name);
  }
  return names;
}

const Variant* choose_variant() {
  const Variant* best = runnable_variants().front();
  const char* asked = std::getenv("FARANDOLE_ISA");
  if (asked == nullptr || *asked == '\0') {
    return best;
  }
  if (const Variant* variant = find_runnable(asked)) {
    return variant;
  }
  base::log(base::Level::kWarning, -1,
            std::string("FARANDOLE_ISA=") + asked + " is not among what this processor can run (" + runnable_names() +
                "); using " + best->name);
  return best;
}

const Variant*& active_variant() {
  static const Variant* variant = choose_variant();
  return variant;
}

const Kernels& kernels() { return *active_variant()->kernels; }

Scaling prepared(const Scale& scale) noexcept {
  assert(scale.divisor > 0);
  if (scale.is_one()) {
    return {};
  }
  Scaling scaling{Scaling::Kind::kDivide, scale.factor == 1.0, scale.factor, scale.divisor};
  if (std::isnan(scale.factor)) {
    scaling.factor = std::numeric_limits<double>::quiet_NaN();  // one with zeros in its fraction: see PairedBfloat16
  }
  if (scale.divisor == 1) {
    scaling.kind = Scaling::Kind::kMultiply;
  } else if (scaling.averages && std::has_single_bit(static_cast<uint64_t>(scale.divisor))) {
    // The reciprocal is exact: the product equals the quotient, and is faster.
    scaling.kind = Scaling::Kind::kMultiply;
    scaling.factor = 1 / static_cast<double>(scale.divisor);
  }
  return scaling;
}

// Below this many bytes, beginning and ending a stream costs more than it gains.
constexpr size_t kLeastStream = 4096;

// The bytes up to the next place where a stream may begin.
size_t bytes_to_stream(const void* address) noexcept {
  return -reinterpret_cast<uintptr_t>(address) % kStreamAlignment;
}

// All outputs have come to such a place after the same number of bytes, which is not always so.
bool stream_together(std::span<void* const> outputs, size_t bytes) noexcept {
  return bytes >= kLeastStream && std::all_of(outputs.begin(), outputs.end(), [&](const void* output) {
           return bytes_to_stream(output) == bytes_to_stream(outputs.front());
         });
}

// memcpy is undefined for one and the same range, and for null even when nothing is copied.
void copy(const void* source, void* destination, size_t bytes, Stores stores) {
  if (source == destination || bytes == 0) {
    return;
  }
  if (stores == Stores::kStreamed) {
    copy_stream(destination, source, bytes);
  } else {
    std::memcpy(destination, source, bytes);
  }
}

// The identities of an operation, as elements of `T`. A 16-bit float is given by its bits.
template <typename T>
struct Identities {
  T one = T{1};
  T largest = std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
  T smallest = std::numeric_limits<T>::has_infinity ? static_cast<T>(-std::numeric_limits<T>::infinity())
                                                    : std::numeric_limits<T>::lowest();
};

template <typename T>
void fill(Op op, void* destination, size_t count, const Identities<T>& identities = {}) {
  T value{};
  switch (op) {
    case Op::kSum:
      break;
    case Op::kMin:
      value = identities.largest;
      break;
    case Op::kMax:
      value = identities.smallest;
      break;
    case Op::kProduct:
      value = identities.one;
      break;
  }
  std::fill_n(static_cast<T*>(destination), count, value);
}

}  // namespace

void reduce_to(Dtype dtype, Op op, std::span<const void* const> inputs, std::span<void* const> outputs, size_t count,
               const Scale& scale, Stores stores) {
  assert(!inputs.empty());
  if (count == 0 || outputs.empty()) {
    return;
  }
  const size_t bytes = count * size_of(dtype);
  if (inputs.size() == 1 && scale.is_one()) {
    for (void* output : outputs) {
      copy(inputs[0], output, bytes, stores);
    }
    return;
  }
  const Fold fold = kernels().fold[static_cast<size_t>(dtype)][static_cast<size_t>(op)];
  const Scaling scaling = prepared(scale);
  FoldJob job{inputs.data(), inputs.size(), outputs.data(), outputs.size(), 0, count, /*streams=*/false};
  if (stores == Stores::kStreamed && stream_together(outputs, bytes)) {
    job.to = bytes_to_stream(outputs.front()) / size_of(dtype);
    fold(job, scaling);
    job = {inputs.data(), inputs.size(), outputs.data(), outputs.size(), job.to, count, /*streams=*/true};
  }
  fold(job, scaling);
}

void copy_stream(void* destination, const void* source, size_t bytes) {
  if (bytes < kLeastStream) {
    if (bytes > 0) {
      std::memcpy(destination, source, bytes);
    }
    return;
  }
  auto* const to = static_cast<std::byte*>(destination);
  const auto* const from = static_cast<const std::byte*>(source);
  const size_t head = bytes_to_stream(destination);
  const size_t body = (bytes - head) / kStreamBlock * kStreamBlock;
  std::memcpy(to, from, head);
  kernels().copy_stream(from + head, to + head, body);
  std::memcpy(to + head + body, from + head + body, bytes - head - body);
}

void accumulate(Dtype dtype, Op op, void* accumulator, const void* input, size_t count) {
  const void* const inputs[] = {accumulator, input};
  reduce_to(dtype, op, inputs, {&accumulator, 1}, count, {});
}

void scale_to(Dtype dtype, const void* source, void* destination, size_t count, const Scale& scale, Stores stores) {
  reduce_to(dtype, Op::kSum, {&source, 1}, {&destination, 1}, count, scale, stores);
}

void convert(Dtype from, Dtype to, const void* source, void* destination, size_t count) {
  if (from == to) {
    copy(source, destination, count * size_of(from), Stores::kCached);
    return;
  }
  if (count == 0) {
    return;
  }
  const bool widens = accumulator_of(from) == to;
  assert(widens || accumulator_of(to) == from);
  const Convert run = widens ? kernels().widen[static_cast<size_t>(from)] : kernels().narrow[static_cast<size_t>(to)];
  run(source, destination, count);
}

void fill_identity(Dtype dtype, Op op, void* destination, size_t count) {
  switch (dtype) {
    case Dtype::kU8:
      return fill<uint8_t>(op, destination, count);
    case Dtype::kI8:
      return fill<int8_t>(op, destination, count);
    case Dtype::kI16:
      return fill<int16_t>(op, destination, count);
    case Dtype::kI32:
      return fill<int32_t>(op, destination, count);
    case Dtype::kI64:
      return fill<int64_t>(op, destination, count);
    case Dtype::kF16:
      return fill<uint16_t>(op, destination, count, {0x3c00, 0x7c00, 0xfc00});
    case Dtype::kF32:
      return fill<float>(op, destination, count);
    case Dtype::kF64:
      return fill<double>(op, destination, count);
    case Dtype::kBool:
      return fill<uint8_t>(op, destination, count, {1, 1, 0});
    case Dtype::kBf16:
      return fill<uint16_t>(op, destination, count, {0x3f80, 0x7f80, 0xff80});
  }
  __builtin_unreachable();
}

Products multiply(Dtype dtype, const void* a, const void* b, size_t count) {
  return count == 0 ? Products{} : kernels().multiply[static_cast<size_t>(dtype)](a, b, count);
}

void blend(Dtype dtype, const void* a, const void* b, const Factors& factors, void* sum, size_t count) {
  if (count > 0) {
    kernels().blend[static_cast<size_t>(dtype)](a, b, factors, sum, count);
  }
}

void quantize(float* values, size_t count, std::byte* bytes) { kernels().quantize(values, count, bytes); }

void dequantize(const std::byte* bytes, size_t count, float* values) { kernels().dequantize(bytes, count, values); }

void dequantize_add(const std::byte* bytes, size_t count, float* values) {
  kernels().dequantize_add(bytes, count, values);
}

std::string_view active_isa() noexcept { return active_variant()->name; }

std::span<const std::string_view> runnable_isas() noexcept {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> found;
    for (const Variant* variant : runnable_variants()) {
      found.emplace_back(variant->name);
    }
    return found;
  }();
  return names;
}

void use_isa(std::string_view name) {
  const Variant* variant = find_runnable(name);
  if (variant == nullptr) {
    throw base::Error(base::Code::kInvalidArgument, "this processor cannot run the kernels \"" + std::string(name) +
                                                        "\"; choose one of: " + runnable_names());
  }
  active_variant() = variant;
}

}  // namespace farandole::reduce
