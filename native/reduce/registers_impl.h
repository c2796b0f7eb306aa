// Registers, and how they come from memory and go back. A part of kernels_impl.h, whose head says how and why this is
// compiled several times.
#pragma once

#include <cstddef>
#include <cstdint>

namespace farandole::reduce {
namespace {

template <typename T, size_t kCount>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kCount * sizeof(T))));
};
template <typename T, size_t kCount>
using Vector = typename VectorOf<T, kCount>::Type;

template <typename To, typename From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

template <typename T>
using Register = Vector<T, kVectorBytes / sizeof(T)>;
using Floats = Register<float>;
using Words = Register<uint32_t>;
using Integers = Register<int32_t>;

// `kBytes` bytes of memory, as 64-bit words.
template <size_t kBytes>
using Raw = Vector<uint64_t, kBytes / sizeof(uint64_t)>;

template <typename R>
inline R load_raw(const void* from) {
  R raw;
  __builtin_memcpy(&raw, from, sizeof(raw));
  return raw;
}

template <typename R>
inline void store_raw(const R& raw, void* to) {
  __builtin_memcpy(to, &raw, sizeof(raw));
}

// ---- The rest of a row, shorter than a register.
//
// Of h to 2h bytes, h a power of two, the first h and the last h are taken side by side; those in the middle may be
// there twice. All that is done with registers is done with each element alone, so that both come out the same, and
// are stored to the same place. This needs neither a buffer nor a mask, and nothing beyond the row is touched. Where
// elements change their size on the way, both sizes of a row give the same picture.

template <typename Word>
inline uint64_t word_at(const unsigned char* from) {
  Word word;
  __builtin_memcpy(&word, from, sizeof(word));
  return word;
}

template <typename Word>
inline void put_word(uint64_t bits, unsigned char* to) {
  const auto word = static_cast<Word>(bits);
  __builtin_memcpy(to, &word, sizeof(word));
}

template <typename Half>
inline uint64_t load_halves(const unsigned char* from, size_t bytes) {
  return word_at<Half>(from) | word_at<Half>(from + bytes - sizeof(Half)) << 8 * sizeof(Half);
}

template <typename Half>
inline void store_halves(uint64_t word, unsigned char* to, size_t bytes) {
  put_word<Half>(word, to);
  put_word<Half>(word >> 8 * sizeof(Half), to + bytes - sizeof(Half));
}

// 1 to 7 bytes.
inline uint64_t load_few(const unsigned char* from, size_t bytes) {
  if (bytes >= 4) {
    return load_halves<uint32_t>(from, bytes);
  }
  return bytes >= 2 ? load_halves<uint16_t>(from, bytes) : load_halves<uint8_t>(from, bytes);
}

inline void store_few(uint64_t word, unsigned char* to, size_t bytes) {
  if (bytes >= 4) {
    store_halves<uint32_t>(word, to, bytes);
  } else if (bytes >= 2) {
    store_halves<uint16_t>(word, to, bytes);
  } else {
    store_halves<uint8_t>(word, to, bytes);
  }
}

// At least 1 byte, and fewer than twice kHalf words, of which an R has as many or more.
template <typename R, size_t kHalf = sizeof(R) / sizeof(uint64_t) / 2>
inline R load_part(const unsigned char* from, size_t bytes) {
  R raw = {};
  if constexpr (kHalf == 0) {
    raw[0] = load_few(from, bytes);
  } else {
    constexpr size_t kHalfBytes = kHalf * sizeof(uint64_t);
    if (bytes < kHalfBytes) {
      return load_part<R, kHalf / 2>(from, bytes);
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < kHalf; ++i) {
      raw[i] = word_at<uint64_t>(from + i * sizeof(uint64_t));
      raw[kHalf + i] = word_at<uint64_t>(from + bytes - kHalfBytes + i * sizeof(uint64_t));
    }
  }
  return raw;
}

template <typename R, size_t kHalf = sizeof(R) / sizeof(uint64_t) / 2>
inline void store_part(const R& raw, unsigned char* to, size_t bytes) {
  if constexpr (kHalf == 0) {
    store_few(raw[0], to, bytes);
  } else {
    constexpr size_t kHalfBytes = kHalf * sizeof(uint64_t);
    if (bytes < kHalfBytes) {
      return store_part<R, kHalf / 2>(raw, to, bytes);
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < kHalf; ++i) {
      put_word<uint64_t>(raw[i], to + i * sizeof(uint64_t));
      put_word<uint64_t>(raw[kHalf + i], to + bytes - kHalfBytes + i * sizeof(uint64_t));
    }
  }
}

}  // namespace
}  // namespace farandole::reduce
