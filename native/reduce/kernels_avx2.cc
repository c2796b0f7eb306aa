// The kernels for AVX2 and F16C.
#include <immintrin.h>

#include <cstddef>

namespace farandole::reduce {
namespace {
constexpr std::size_t kVectorBytes = 32;
}
}  // namespace farandole::reduce

#include "reduce/kernels_impl.h"

namespace farandole::reduce {
namespace {

// float16 by F16C, in the order of memory.
struct HardFloat16 {
  using Stored = uint16_t;
  using Lane = float;
  static constexpr size_t kGroup = 1;
  static void load(const Stored* from, Floats* lanes) {
    __m128i halves;
    __builtin_memcpy(&halves, from, sizeof(halves));
    *lanes = _mm256_cvtph_ps(halves);
  }
  static void store(const Floats* lanes, Stored* to) {
    const __m128i halves = _mm256_cvtps_ph(*lanes, _MM_FROUND_TO_NEAREST_INT);
    __builtin_memcpy(to, &halves, sizeof(halves));
  }
};

}  // namespace

constinit const Kernels kAvx2Kernels = make_kernels<HardFloat16, HardFloat16>();

}  // namespace farandole::reduce
