// Runs one job with the algorithm that was chosen for it. A group of one moves nothing, but its arithmetic stays.
// All functions block until the job is done, and throw the world's error when it is revoked.
#pragma once

#include "collective/algorithm_table.h"

namespace farandole::collective {

void run(Context& context, const Choice& choice, const AllreduceJob& job);
void run(Context& context, const Choice& choice, const CompressedJob& job);
void run(Context& context, const Choice& choice, const AllgatherJob& job);
void run(Context& context, const Choice& choice, const BroadcastJob& job);
void run(Context& context, const Choice& choice, const AlltoallJob& job);
void run(Context& context, const Choice& choice, const ReducescatterJob& job);

}  // namespace farandole::collective
