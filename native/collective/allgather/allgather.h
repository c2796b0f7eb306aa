// The rows of the allgather table; descriptions are there.
#pragma once

#include "collective/algorithm_table.h"

namespace farandole::collective {

void allgather_direct(Context& context, const AllgatherJob& job);
void allgather_linear(Context& context, const AllgatherJob& job);

}  // namespace farandole::collective
