// Runs one job with the algorithm that was chosen for it. A group of one moves nothing, but its arithmetic stays.
#pragma once

#include "collective/algorithm_table.h"

namespace farandole::collective {

// Blocks until the job is done. Throws the world's error when it is revoked.
void run(Context& context, const Choice& choice, const Job& job);

}  // namespace farandole::collective
