// The kernels with what every processor of the architecture has; 16-byte registers on all that we know.
#include <cstddef>

namespace farandole::reduce {
namespace {
constexpr std::size_t kVectorBytes = 16;
}
}  // namespace farandole::reduce

#include "reduce/registers_impl.h"

namespace farandole::reduce {
namespace {

struct Isa {
  // Not every architecture has stores past the caches.
  template <typename R>
  static void stream(const R& value, void* to) {
    store_raw(value, to);
  }
  static void fence() {}

  static Register<int16_t> negated_where_negative(Register<int16_t> magnitude, Register<int16_t> sign) {
    const Register<int16_t> negative = sign >> 15;
    return (magnitude ^ negative) - negative;
  }

  template <typename Slowly>
  static Register<int64_t> truncated(Register<double> values, const Slowly& slowly) {
    return slowly(values);
  }
};

}  // namespace
}  // namespace farandole::reduce

#include "reduce/kernels_impl.h"

namespace farandole::reduce {
constinit const Kernels kBaselineKernels = make_kernels<Paired<Float16Format>, Ordered<Float16Format>>();
}
