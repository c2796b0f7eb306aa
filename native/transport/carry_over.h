// The state that a mesh leaves to its endpoint, which outlives it, because the next generation must respect it.
#pragma once

#include <vector>

#include "transport/link_kind.h"

namespace farandole::transport {

struct EndpointCarryOver {
  bool mesh_lives = false;  // at most one mesh of an endpoint exists at a time
  // Workers that have our memory and may still be running in a generation that has ended, and so may write to it.
  MemoryHolders possible_writers;
  std::vector<void*> ring_buffers;  // the arena's blocks of the last generation's links
};

}  // namespace farandole::transport
