#include <vector>

#include "collective/allreduce/allreduce.h"

namespace farandole::collective {

void allreduce_flat(Context& context, const AllreduceJob& job, BufferAllreduce across) {
  const Bucket bucket(job);
  const reduce::Dtype held = reduce::accumulator_of(job.dtype);
  const size_t chunk = context.staging.piece_bytes() / reduce::size_of(held);
  // Staging, though it is not shared here: memory that is there already.
  std::byte* const buffer = context.staging.acquire(0);
  for (size_t from = 0; from < bucket.end(); from += chunk) {
    const size_t to = std::min(bucket.end(), from + chunk);
    bucket.copy_in(from, to, held, buffer);
    across(context, context.group.members, held, job.op, buffer, to - from);
    bucket.copy_out(from, to, held, buffer, /*finish=*/true);
  }
}

}  // namespace farandole::collective
