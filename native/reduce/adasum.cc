#include "reduce/adasum.h"

#include <cmath>
#include <limits>

namespace farandole::reduce {

Factors adasum_factors(const Products& products) noexcept {
  static const double smallest = std::sqrt(std::numeric_limits<double>::min());
  const auto factor = [&](double squared) { return squared < smallest ? 1.0 : 1.0 - products.dot / squared * 0.5; };
  return {factor(products.a_squared), factor(products.b_squared)};
}

}  // namespace farandole::reduce
