// The rows of the reduce table; descriptions are there.
#pragma once

#include "collective/algorithm_table.h"

namespace farandole::collective {

void reduce_direct(Context& context, const ReduceJob& job);
void reduce_exchange(Context& context, const ReduceJob& job);

}  // namespace farandole::collective
