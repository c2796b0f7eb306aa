// The limit of open files of this process: it needs two for each other worker of its world, beside its own.
#pragma once

#include <cstddef>

namespace farandole::transport {

// Makes sure that a world of this many workers does not run out of descriptors while it forms. Raises the soft limit to
// the hard one if that is needed; throws Error(kUnavailable), with what to do, if that is not enough.
void reserve_descriptors(size_t world_size);

}  // namespace farandole::transport
