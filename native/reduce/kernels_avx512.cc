// The kernels for AVX-512 with its byte, word, doubleword and vector-length extensions.
#include <immintrin.h>

#include <cstddef>

namespace farandole::reduce {
namespace {
constexpr std::size_t kVectorBytes = 64;
}
}  // namespace farandole::reduce

#include "reduce/kernels_impl.h"

namespace farandole::reduce {
namespace {

// float16 by AVX-512F, in the order of memory. The masked forms with a full mask are the plain instructions;
// in the plain forms GCC 12 warns about its own header.
struct HardFloat16 {
  using Stored = uint16_t;
  using Lane = float;
  static constexpr size_t kGroup = 1;
  static constexpr __mmask16 kAll = 0xffff;
  static void load(const Stored* from, Floats* lanes) {
    __m256i halves;
    __builtin_memcpy(&halves, from, sizeof(halves));
    *lanes = _mm512_maskz_cvtph_ps(kAll, halves);
  }
  static void store(const Floats* lanes, Stored* to) {
    const __m256i halves = _mm512_maskz_cvtps_ph(kAll, *lanes, _MM_FROUND_TO_NEAREST_INT);
    __builtin_memcpy(to, &halves, sizeof(halves));
  }
};

}  // namespace

constinit const Kernels kAvx512Kernels = make_kernels<HardFloat16, HardFloat16>();

}  // namespace farandole::reduce
