// Results whose size is known only when the members have reported how many rows they contribute.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/pending.h"

namespace farandole::engine::kinds {

// Whether a gathered result can go to the caller's memory, which has room only for equal parts of this many rows.
inline bool fits_given_output(const Request& request, const std::vector<int64_t>& sizes, int64_t part) {
  return request.output != nullptr && std::ranges::all_of(sizes, [&](int64_t rows) { return rows == part; });
}

// Memory for the rows that were received, if the caller has given none: the completion's, where the request runs.
inline void* memory_for_rows(Pending& pending, size_t bytes) {
  Completion& completion = *pending.completion;
  if (device::Gpu* const gpu = pending.gpu(); gpu != nullptr) {
    completion.device_data = std::make_shared<device::Memory>(gpu->allocate_result(bytes));
    return completion.device_data->data();
  }
  completion.data.resize(bytes);
  return completion.data.data();
}

}  // namespace farandole::engine::kinds
