// The rows of the allreduce table; descriptions are there.
#pragma once

#include "collective/algorithm_table.h"

namespace farandole::collective {

void allreduce_direct(Context& context, const AllreduceJob& job);
void stage_direct(Context& context, const AllreduceJob& job);
void reduce_staged_direct(Context& context, const AllreduceJob& job);
void allreduce_ring(Context& context, const AllreduceJob& job);
void allreduce_recursive_doubling(Context& context, const AllreduceJob& job);
void allreduce_exchange(Context& context, const AllreduceJob& job);
void allreduce_two_level(Context& context, const AllreduceJob& job);
void allreduce_adasum(Context& context, const AllreduceJob& job);

// Two of them on a buffer.
void buffer_ring(Context& context, std::span<const int> peers, reduce::Dtype dtype, reduce::Op op, std::byte* data,
                 size_t count);
void buffer_recursive_doubling(Context& context, std::span<const int> peers, reduce::Dtype dtype, reduce::Op op,
                               std::byte* data, size_t count);

// Packs a bucket chunk by chunk into a buffer of the accumulator type, allreduces that over links among all
// members, and unpacks it.
void allreduce_flat(Context& context, const AllreduceJob& job, BufferAllreduce across);

}  // namespace farandole::collective
