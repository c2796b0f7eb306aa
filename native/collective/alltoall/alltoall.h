// The rows of the alltoall table; descriptions are there.
#pragma once

#include "collective/algorithm_table.h"

namespace farandole::collective {

void alltoall_direct(Context& context, const AlltoallJob& job);
void alltoall_pairwise(Context& context, const AlltoallJob& job);

}  // namespace farandole::collective
