// On processors that are not x86 the baseline is all there is.
#include "reduce/variant.h"

namespace farandole::reduce {

Variants built_variants() noexcept {
  static constexpr Variant kVariants[] = {{"baseline", &kBaselineKernels, true}};
  return {kVariants, 1};
}

}  // namespace farandole::reduce
