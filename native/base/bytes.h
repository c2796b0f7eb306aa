// Fixed-format binary messages: little-endian integers, length-prefixed strings. A Reader never reads
// past the end and never trusts a length; a malformed message is an Error, not a crash.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace farandole::base {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

using Bytes = std::vector<std::byte>;

class Writer {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void put(T value) {
    append(&value, sizeof(T));
  }

  void put_string(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    append(text.data(), text.size());
  }

  template <typename T>
  void put_vector(const std::vector<T>& values) {
    put(static_cast<uint32_t>(values.size()));
    for (const T& value : values) {
      put(value);
    }
  }

  Bytes take() { return std::move(bytes_); }
  size_t size() const noexcept { return bytes_.size(); }

 private:
  // Not inlined: where GCC 12 knows the sizes, it warns of an overflow in std::vector that cannot happen.
  [[gnu::noinline]] void append(const void* data, size_t count) {
    const size_t at = bytes_.size();
    bytes_.resize(at + count);
    if (count > 0) {
      std::memcpy(bytes_.data() + at, data, count);
    }
  }

  Bytes bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  T get() {
    if constexpr (std::is_same_v<T, bool>) {
      const auto byte = get<uint8_t>();
      if (byte > 1) {
        throw Error(Code::kInternal, "malformed message: a bool is neither true nor false");
      }
      return byte == 1;
    } else {
      T value;
      std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
      return value;
    }
  }

  std::string get_string() {
    const auto raw = take(get<uint32_t>());
    return {reinterpret_cast<const char*>(raw.data()), raw.size()};
  }

  template <typename T>
  std::vector<T> get_vector() {
    const auto count = get<uint32_t>();
    if (count > rest_.size() / sizeof(T)) {
      throw Error(Code::kInternal, "malformed message: it announces more elements than it holds");
    }
    std::vector<T> values(count);
    for (T& value : values) {
      value = get<T>();
    }
    return values;
  }

  bool done() const noexcept { return rest_.empty(); }

 private:
  std::span<const std::byte> take(size_t count) {
    if (count > rest_.size()) {
      throw Error(Code::kInternal, "malformed message: it ends too early");
    }
    const auto taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }

  std::span<const std::byte> rest_;
};

}  // namespace farandole::base
