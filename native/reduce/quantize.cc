#include "reduce/quantize.h"

namespace farandole::reduce {

size_t quantized_bytes(size_t count) noexcept {
  constexpr size_t kBlock = 64;
  const size_t chunks = (count + kQuantizedChunk - 1) / kQuantizedChunk;
  return chunks * sizeof(float) + (count + kBlock - 1) / kBlock * kBlock;
}

}  // namespace farandole::reduce
