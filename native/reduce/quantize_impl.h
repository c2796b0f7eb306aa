// The kernels of quantize.h; a part of kernels_impl.h, whose head says how and why this is compiled several times.
#pragma once

#include "reduce/quantize.h"

namespace farandole::reduce {
namespace {

inline constexpr size_t kBlockWords = 16;  // of a block of 64 codes
inline constexpr size_t kBlockCodes = 4 * kBlockWords;
inline constexpr size_t kFloatLanes = kVectorBytes / sizeof(float);
inline constexpr uint32_t kTooLargeBits = 0x7f000000;  // of kTooLarge: above that are infinity and NaN
inline constexpr uint32_t kNanBits = 0x7fc00000;
// Added to a float32 of magnitude below 2^22, this rounds it to an integer, which is then in the low bits.
inline constexpr float kRounder = 0x1.8p23F;
inline constexpr int kNanCode = -128;

template <typename V>
inline V load_from(const void* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

template <typename V>
inline void store_to(void* to, const V& value) {
  __builtin_memcpy(to, &value, sizeof(value));
}

// The place of an element's code in its block.
inline size_t place_of(size_t element) { return element % kBlockWords * 4 + element / kBlockWords; }

inline uint32_t magnitude_bits(float value) { return bits_as<uint32_t>(value) & 0x7fffffff; }

// The largest magnitude, as bits: compared as integers, NaN is above infinity, and that above all else.
inline uint32_t largest_bits(const float* values, size_t count) {
  Integers most = {};
  for (size_t at = 0; at < count; at += kFloatLanes) {
    const Integers bits = bits_as<Integers>(load_from<Words>(values + at) & 0x7fffffff);
    most = bits > most ? bits : most;
  }
  int32_t largest = 0;
  for (size_t lane = 0; lane < kFloatLanes; ++lane) {
    largest = most[lane] > largest ? most[lane] : largest;
  }
  return static_cast<uint32_t>(largest);
}

// Finite values only. `count` is a multiple of kBlockCodes, as in all that follows.
inline void encode_chunk(float* values, size_t count, float scale, float inverse, std::byte* codes) {
  const auto encode = [&](float* at) {
    const Floats value = load_from<Floats>(at);
    const Floats shifted = value * inverse + kRounder;
    store_to(at, value - (shifted - kRounder) * scale);
    return bits_as<Words>(shifted) - bits_as<uint32_t>(kRounder);
  };
  for (size_t block = 0; block < count; block += kBlockCodes) {
    for (size_t word = 0; word < kBlockWords; word += kFloatLanes) {
      float* const at = values + block + word;
      const Words low = (encode(at) & 0xff) | (encode(at + kBlockWords) & 0xff) << 8;
      const Words high = (encode(at + 2 * kBlockWords) & 0xff) << 16 | encode(at + 3 * kBlockWords) << 24;
      store_to(codes + block + 4 * word, low | high);
    }
  }
}

// One element at a time: such chunks are rare.
inline float encode_chunk_with_nan(float* values, size_t count, std::byte* codes) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = magnitude_bits(values[i]);
    largest = bits < kTooLargeBits && bits > largest ? bits : largest;
  }
  const float most = bits_as<float>(largest);
  const bool has_scale = most >= kLeastMagnitude;
  const float scale = has_scale ? most / 127 : 0;
  const float inverse = has_scale ? 127 / most : 0;
  for (size_t i = 0; i < count; ++i) {
    int code = kNanCode;
    if (magnitude_bits(values[i]) < kTooLargeBits) {
      const float rounded = (values[i] * inverse + kRounder) - kRounder;
      code = static_cast<int>(rounded);
      values[i] -= rounded * scale;
    } else {
      values[i] = 0;
    }
    codes[i / kBlockCodes * kBlockCodes + place_of(i % kBlockCodes)] = static_cast<std::byte>(code);
  }
  return -scale;
}

inline void quantize_chunk(float* values, size_t count, std::byte* chunk) {
  std::byte* const codes = chunk + sizeof(float);
  const uint32_t largest = largest_bits(values, count);
  const float most = bits_as<float>(largest);
  float scale = 0;
  if (largest >= kTooLargeBits) {
    scale = encode_chunk_with_nan(values, count, codes);
  } else if (most >= kLeastMagnitude) {
    scale = most / 127;
    encode_chunk(values, count, scale, 127 / most, codes);
  } else {
    __builtin_memset(codes, 0, count);
  }
  store_to(chunk, scale);
}

template <bool kAdd>
inline void decode_chunk(const std::byte* codes, size_t count, float scale, float* values) {
  const auto decode = [&](Words shifted, float* at) {
    const Floats value = __builtin_convertvector(bits_as<Integers>(shifted) >> 24, Floats) * scale;
    store_to(at, kAdd ? load_from<Floats>(at) + value : value);
  };
  for (size_t block = 0; block < count; block += kBlockCodes) {
    for (size_t word = 0; word < kBlockWords; word += kFloatLanes) {
      const auto packed = load_from<Words>(codes + block + 4 * word);
      float* const at = values + block + word;
      decode(packed << 24, at);
      decode(packed << 16, at + kBlockWords);
      decode(packed << 8, at + 2 * kBlockWords);
      decode(packed, at + 3 * kBlockWords);
    }
  }
}

template <bool kAdd>
inline void decode_chunk_with_nan(const std::byte* codes, size_t count, float scale, float* values) {
  for (size_t i = 0; i < count; ++i) {
    const auto code = static_cast<int8_t>(codes[i / kBlockCodes * kBlockCodes + place_of(i % kBlockCodes)]);
    const float value = code == kNanCode ? bits_as<float>(kNanBits) : static_cast<float>(code) * scale;
    values[i] = kAdd ? values[i] + value : value;
  }
}

template <bool kAdd>
inline void dequantize_chunk(const std::byte* chunk, size_t count, float* values) {
  const float scale = load_from<float>(chunk);
  if (bits_as<uint32_t>(scale) >> 31 != 0) {
    decode_chunk_with_nan<kAdd>(chunk + sizeof(float), count, -scale, values);
  } else {
    decode_chunk<kAdd>(chunk + sizeof(float), count, scale, values);
  }
}

// The last chunk, where it is shorter than others, goes through a buffer in which it ends with a block.
void quantize_run(float* values, size_t count, std::byte* bytes) {
  for (; count >= kQuantizedChunk; count -= kQuantizedChunk) {
    quantize_chunk(values, kQuantizedChunk, bytes);
    values += kQuantizedChunk;
    bytes += sizeof(float) + kQuantizedChunk;
  }
  if (count > 0) {
    float padded[kQuantizedChunk] = {};
    __builtin_memcpy(padded, values, count * sizeof(float));
    quantize_chunk(padded, (count + kBlockCodes - 1) / kBlockCodes * kBlockCodes, bytes);
    __builtin_memcpy(values, padded, count * sizeof(float));
  }
}

template <bool kAdd>
void dequantize_run(const std::byte* bytes, size_t count, float* values) {
  for (; count >= kQuantizedChunk; count -= kQuantizedChunk) {
    dequantize_chunk<kAdd>(bytes, kQuantizedChunk, values);
    values += kQuantizedChunk;
    bytes += sizeof(float) + kQuantizedChunk;
  }
  if (count > 0) {
    float padded[kQuantizedChunk] = {};
    __builtin_memcpy(padded, values, count * sizeof(float));
    dequantize_chunk<kAdd>(bytes, (count + kBlockCodes - 1) / kBlockCodes * kBlockCodes, padded);
    __builtin_memcpy(values, padded, count * sizeof(float));
  }
}

}  // namespace
}  // namespace farandole::reduce
