// The kernels for AVX2 and F16C.
#include <immintrin.h>

#include <cstddef>

namespace farandole::reduce {
namespace {
constexpr std::size_t kVectorBytes = 32;
}
}  // namespace farandole::reduce

#include "reduce/registers_impl.h"

namespace farandole::reduce {
namespace {

struct Isa {
  template <typename R>
  static void stream(const R& value, void* to) {
    if constexpr (sizeof(R) == kVectorBytes) {
      _mm256_stream_si256(static_cast<__m256i*>(to), bits_as<__m256i>(value));
    } else {
      _mm_stream_si128(static_cast<__m128i*>(to), bits_as<__m128i>(value));
    }
  }
  static void fence() { _mm_sfence(); }

  static Register<int16_t> negated_where_negative(Register<int16_t> magnitude, Register<int16_t> sign) {
    return bits_as<Register<int16_t>>(_mm256_sign_epi16(bits_as<__m256i>(magnitude), bits_as<__m256i>(sign)));
  }

  template <typename Slowly>
  static Register<int64_t> truncated(Register<double> values, const Slowly& slowly) {
    const __m256d magnitude = _mm256_andnot_pd(_mm256_set1_pd(-0.0), values);
    if (_mm256_movemask_pd(_mm256_cmp_pd(magnitude, _mm256_set1_pd(0x1p51), _CMP_LT_OQ)) != 0xf) {
      return slowly(values);
    }
    // Added to this, an integer is in the lower bits of the fraction.
    const Register<double> shifter = Register<double>{} + 0x1.8p52;
    const __m256d whole = _mm256_round_pd(values, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    return bits_as<Register<int64_t>>(whole + shifter) - bits_as<Register<int64_t>>(shifter);
  }
};

}  // namespace
}  // namespace farandole::reduce

#include "reduce/kernels_impl.h"

namespace farandole::reduce {
namespace {

// float16 by F16C, in the order of memory.
struct HardFloat16 {
  using Stored = uint16_t;
  using Lane = float;
  using Value = Floats;
  static constexpr size_t kGroup = 1;
  using Packed = Raw<kVectorBytes / 2>;
  static void unpack(const Packed& packed, Floats* lanes) { *lanes = _mm256_cvtph_ps(bits_as<__m128i>(packed)); }
  static Packed pack(const Floats* lanes) {
    return bits_as<Packed>(_mm256_cvtps_ph(*lanes, _MM_FROUND_TO_NEAREST_INT));
  }
};

}  // namespace

constinit const Kernels kAvx2Kernels = make_kernels<HardFloat16, HardFloat16>();

}  // namespace farandole::reduce
