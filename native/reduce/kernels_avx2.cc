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

struct HardFloat16 : Float16Bits {
  static LaneVector widen(StoredVector stored) { return _mm256_cvtph_ps(bits_as<__m128i>(stored)); }
  static StoredVector narrow(LaneVector lanes) {
    return bits_as<StoredVector>(_mm256_cvtps_ph(lanes, _MM_FROUND_TO_NEAREST_INT));
  }
};

}  // namespace

constinit const Kernels kAvx2Kernels = make_kernels<HardFloat16>();

}  // namespace farandole::reduce
