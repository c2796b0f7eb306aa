// The rows of the broadcast table; descriptions are there.
#pragma once

#include "collective/algorithm_table.h"

namespace farandole::collective {

void broadcast_direct(Context& context, const BroadcastJob& job);
void broadcast_tree(Context& context, const BroadcastJob& job);

}  // namespace farandole::collective
