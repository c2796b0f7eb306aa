// The kernels for AVX-512 with its byte, word, doubleword and vector-length extensions.
#include <immintrin.h>

#include <cstddef>

namespace farandole::reduce {
namespace {
constexpr std::size_t kVectorBytes = 64;
}
}  // namespace farandole::reduce

#include "reduce/registers_impl.h"

namespace farandole::reduce {
namespace {

struct Isa {
  template <typename R>
  static void stream(const R& value, void* to) {
    if constexpr (sizeof(R) == kVectorBytes) {
      _mm512_stream_si512(static_cast<__m512i*>(to), bits_as<__m512i>(value));
    } else {
      _mm256_stream_si256(static_cast<__m256i*>(to), bits_as<__m256i>(value));
    }
  }
  static void fence() { _mm_sfence(); }

  static Register<int16_t> negated_where_negative(Register<int16_t> magnitude, Register<int16_t> sign) {
    const Register<int16_t> negative = sign >> 15;
    return (magnitude ^ negative) - negative;
  }

  template <typename Slowly>
  static Register<int64_t> truncated(Register<double> values, const Slowly& slowly) {
    // Compared as integers, NaN is above all numbers.
    const __m512i magnitude = bits_as<__m512i>(bits_as<Register<int64_t>>(values) & INT64_MAX);
    const __m512i limit = bits_as<__m512i>(Register<double>{} + 0x1p63);
    if (_mm512_cmplt_epi64_mask(magnitude, limit) != 0xff) {
      return slowly(values);
    }
    return __builtin_convertvector(values, Register<int64_t>);
  }
};

}  // namespace
}  // namespace farandole::reduce

#include "reduce/kernels_impl.h"

namespace farandole::reduce {
namespace {

// float16 by AVX-512F, in the order of memory. The masked forms with a full mask are the plain instructions;
// in the plain forms GCC 12 warns about its own header.
struct HardFloat16 {
  using Stored = uint16_t;
  using Lane = float;
  using Value = Floats;
  static constexpr size_t kGroup = 1;
  using Packed = Raw<kVectorBytes / 2>;
  static constexpr __mmask16 kAll = 0xffff;
  static void unpack(const Packed& packed, Floats* lanes) {
    *lanes = _mm512_maskz_cvtph_ps(kAll, bits_as<__m256i>(packed));
  }
  static Packed pack(const Floats* lanes) {
    return bits_as<Packed>(_mm512_maskz_cvtps_ph(kAll, *lanes, _MM_FROUND_TO_NEAREST_INT));
  }
};

}  // namespace

constinit const Kernels kAvx512Kernels = make_kernels<HardFloat16, HardFloat16>();

}  // namespace farandole::reduce
