// The rows of the reducescatter table; descriptions are there.
#pragma once

#include "collective/algorithm_table.h"

namespace farandole::collective {

void reducescatter_direct(Context& context, const ReducescatterJob& job);
void reducescatter_exchange(Context& context, const ReducescatterJob& job);
void reducescatter_ring(Context& context, const ReducescatterJob& job);

// The ring itself, on a buffer: slice `ends[i]` of `data` is reduced over all peers and comes to lie, in place, at peer
// i; what the other slices hold afterwards is undefined. Elements are of an accumulator type.
void buffer_ring_reducescatter(Context& context, std::span<const int> peers, reduce::Dtype dtype, reduce::Op op,
                               std::byte* data, std::span<const Slice> ends);

}  // namespace farandole::collective
