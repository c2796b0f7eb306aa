// Numbers as bytes with one scale a chunk, and back: the arithmetic of compressed collectives.
//
// A run of float32 is cut into chunks of kQuantizedChunk elements, the last one as long as it is. A chunk becomes a
// scale and, for each element, a code from -127 to 127 that stands for code * scale:
//
//   scale = (largest magnitude in the chunk) / 127      code = element / scale, rounded to the nearest, ties to even
//
// so that an element is off by at most half a scale. Like all arithmetic here this gives the same bits with every
// instruction set. A chunk all of whose magnitudes are below kLeastMagnitude has scale 0: its elements become 0.
//
// What is not finite, or not below kTooLarge, stays visible: it becomes NaN, for which the code -128 stands, whatever
// the scale. A chunk that has one has a negative scale (or -0). Other chunks are not affected: the scale is that
// of the other elements.
//
// A chunk in bytes: the scale, then the codes in blocks of 64, the last one padded with zeros. Byte 4j + i of a block
// is the code of its element 16i + j, so that four registers of integers are packed by shifts, on every instruction set
// alike.
#pragma once

#include <cstddef>

namespace farandole::reduce {

inline constexpr size_t kQuantizedChunk = 256;
inline constexpr float kLeastMagnitude = 0x1p-100F;
inline constexpr float kTooLarge = 0x1p127F;  // from here on 127 * scale could round up to infinity

// The bytes that a run of this number of elements takes.
size_t quantized_bytes(size_t count) noexcept;

// Writes quantized_bytes(count) bytes. What is lost stays in `values`: the element minus what its code stands for, and
// 0 where that is NaN.
void quantize(float* values, size_t count, std::byte* bytes);
// Writes the values that `bytes` stand for.
void dequantize(const std::byte* bytes, size_t count, float* values);
// values[i] += what was quantized.
void dequantize_add(const std::byte* bytes, size_t count, float* values);

}  // namespace farandole::reduce
