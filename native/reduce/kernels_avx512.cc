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

struct HardFloat16 : Float16Bits {
  // The masked forms with a full mask are the plain instructions; GCC 12 warns about its own header in the plain forms.
  static constexpr __mmask16 kAll = 0xffff;
  static LaneVector widen(StoredVector stored) { return _mm512_maskz_cvtph_ps(kAll, bits_as<__m256i>(stored)); }
  static StoredVector narrow(LaneVector lanes) {
    return bits_as<StoredVector>(_mm512_maskz_cvtps_ph(kAll, lanes, _MM_FROUND_TO_NEAREST_INT));
  }
};

}  // namespace

constinit const Kernels kAvx512Kernels = make_kernels<HardFloat16>();

}  // namespace farandole::reduce
