// Results whose size is known only when the members have said how much they bring.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/pending.h"

namespace farandole::engine::kinds {

// Whether a gathered result can go to the caller's memory, which has room for equal parts of so many rows only.
inline bool fits_given_output(const Request& request, const std::vector<int64_t>& sizes, int64_t part) {
  return request.output != nullptr && std::ranges::all_of(sizes, [&](int64_t rows) { return rows == part; });
}

}  // namespace farandole::engine::kinds
