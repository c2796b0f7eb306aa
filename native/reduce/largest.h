// The search for the largest elements of a vector, the arithmetic of top-k compression.
#pragma once

#include <cstddef>
#include <cstdint>

namespace farandole::reduce {

// Writes the places of the `most` elements of largest magnitude to `places`, ascending. Of equal magnitudes the first
// ones count; infinity is larger than any number, and NaN larger still. Requires most <= count <= 2^32.
void find_largest(const float* values, size_t count, size_t most, uint32_t* places);

}  // namespace farandole::reduce
