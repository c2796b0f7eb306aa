// The kernels with what every processor of the architecture has; 16-byte registers on all that we know.
#include <cstddef>

namespace farandole::reduce {
namespace {
constexpr std::size_t kVectorBytes = 16;
}
}  // namespace farandole::reduce

#include "reduce/kernels_impl.h"

namespace farandole::reduce {
constinit const Kernels kBaselineKernels = make_kernels<Paired<Float16Format>, Ordered<Float16Format>>();
}
