// The way between a tensor and the memory in which a collective works on it.
#pragma once

#include <cstddef>

#include "reduce/kernels.h"

namespace farandole::collective {

// Scales `count` elements in the type of the source, rounds, then converts: between a type and its accumulator, either
// way, or to the same type. Source and target are the same address or do not overlap. Stores are streamed where the two
// types are the same; a conversion ignores that wish.
void scaled_copy(reduce::Dtype from_type, reduce::Dtype to_type, const std::byte* from, std::byte* to, size_t count,
                 const reduce::Scale& scale, reduce::Stores stores = reduce::Stores::kCached);

}  // namespace farandole::collective
