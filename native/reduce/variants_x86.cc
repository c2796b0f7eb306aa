#include "reduce/variant.h"

namespace farandole::reduce {

Variants built_variants() noexcept {
  // The compiler's test also asks whether the operating system saves the wide registers.
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  static const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  static const Variant variants[] = {
      {"avx512", &kAvx512Kernels, avx512}, {"avx2", &kAvx2Kernels, avx2}, {"baseline", &kBaselineKernels, true}};
  return {variants, sizeof(variants) / sizeof(variants[0])};
}

}  // namespace farandole::reduce
