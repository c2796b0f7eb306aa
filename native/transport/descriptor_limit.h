// The limit of open files of this process: it needs two for each other worker of its world, beside its own.
#pragma once

#include <cstddef>

namespace farandole::transport {

// Makes sure that a world of this many workers does not run out of descriptors while it forms, with links to
// `from_start` of them. Raises the soft limit to the hard one if links to all need that; throws Error(kUnavailable),
// with what to do, if that is not enough for those from the start.
void reserve_descriptors(size_t world_size, size_t from_start);

}  // namespace farandole::transport
