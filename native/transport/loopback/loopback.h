// A world whose workers are threads of one process: for tests of everything above, with faults on demand.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "transport/mesh.h"

namespace farandole::transport {

struct LoopbackSettings {
  int size = 2;
  uint64_t generation = 0;
  // For each rank its host, as Mesh::hosts() (lowest rank of the host); empty: all on one host.
  std::vector<int> hosts;
  bool shared_memory = true;
  size_t arena_bytes = size_t{1} << 26;
  size_t link_bytes = size_t{1} << 16;  // the capacity of one direction of a link
};

// The faults that the injector may cause in one operation of a link.
struct LinkFault {
  bool stall = false;  // nothing moves this time: a delay
  bool cut = false;    // the link breaks: both ends lose each other
  bool kill = false;   // the calling worker dies here, as by signal 9: the call does not return but throws its status
  size_t at_most = SIZE_MAX;  // the most bytes that move: a short read or write
};
// Called before every operation of a link, and every wake, by the worker `self` towards `peer`; `operation` counts
// the worker's calls. Must be thread-safe.
using FaultInjector = std::function<LinkFault(int self, int peer, uint64_t operation)>;

class LoopbackWorld {
 public:
  explicit LoopbackWorld(LoopbackSettings settings, FaultInjector injector = nullptr);
  ~LoopbackWorld();

  // The mesh of one rank, once per rank. The world must outlive its meshes.
  std::unique_ptr<Mesh> mesh(int rank);
  // The worker dies: every other rank finds its links closed.
  void kill(int rank);
  bool killed(int rank) const;
  // Ends the generation for everyone.
  void revoke(const Cause& cause);
  Arena& arena(int rank);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace farandole::transport
