// What one worker decides while a world's mesh is set up: when it tells the others that it is linked to all, when the
// world has formed, and when it is lost. No threads, no I/O, no clock: MeshSetup drives it with sockets (mesh_setup.h
// has the rules), a simulation with messages that are only counted.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/error.h"
#include "transport/control.h"
#include "transport/handshake.h"
#include "transport/hosts.h"
#include "transport/revocation_graph.h"
#include "transport/world_status.h"

namespace farandole::transport {

class SetupCore {
 public:
  SetupCore(int rank, int size, uint64_t generation);

  // --- What has happened. A cause that is returned is the world's end.
  // A control connection with this worker is proven. A later one replaces an earlier one. `connector`: this side has
  // made it, so it knows that the other one takes it for proven, too.
  void join(int peer, bool connector, bool shares_memory);
  // The other side has taken this connection for proven, too.
  void prove(int peer) noexcept { state(peer).mutual = true; }
  // The link to it is complete.
  void link(int peer) noexcept;
  // Throws Error(kTimeout) when that worker has given up.
  std::optional<Cause> receive(int peer, const ControlFrame& frame);
  // Its connection has ended. Without a cause it is only not connected any more, unless keeps() says otherwise.
  std::optional<Cause> end(int peer, Sign sign);
  // It has certainly ended, whatever its connection says.
  std::optional<Cause> die(int peer) const;
  // A handshake with it has failed, for this reason: only a hint for the message at the deadline.
  void refuse(int peer, Refusal refusal) noexcept { state(peer).refusal = refusal; }

  // Returns once, when there is a link to every other worker, what all of them are to be told.
  std::optional<ControlFrame> announce();

  bool lacks_a_link() const noexcept { return linked_ < others(); }
  bool has_left(int peer) const noexcept { return state(peer).left; }
  // The world may form with it although its connection has ended.
  bool keeps(int peer) const noexcept { return has_left(peer) || may_have_left(peer); }
  // All workers have said that they are linked to all, this one too.
  bool all_are_ready() const noexcept { return announced_ && ready_ == others(); }
  // Requires that some are not ready.
  base::Error timeout() const;
  // See Mesh::hosts(). Requires that all are ready.
  std::vector<int> hosts() const { return group_hosts(shares_); }

 private:
  struct PeerState {
    bool linked = false;
    bool mutual = false;
    bool ready = false;  // it has said that it is linked to all
    bool left = false;   // it has already said goodbye again
    bool shares_memory = false;
    Refusal refusal = Refusal::kNone;
  };

  int size() const noexcept { return static_cast<int>(peers_.size()); }
  int others() const noexcept { return size() - 1; }
  // The world may have formed for it and ended; others send the cause.
  bool may_have_left(int peer) const noexcept {
    return announced_ && state(peer).ready && !tell_each_other(peer, rank_, size());
  }
  PeerState& state(int rank) noexcept { return peers_[static_cast<size_t>(rank)]; }
  const PeerState& state(int rank) const noexcept { return peers_[static_cast<size_t>(rank)]; }
  // Of the connection that is no more, keeps what is known of the worker without it.
  void reset(PeerState& peer);

  const int rank_;
  const uint64_t generation_;
  std::vector<PeerState> peers_;  // by rank
  Sharing shares_;
  int linked_ = 0;  // how many are
  int ready_ = 0;
  bool announced_ = false;
};

}  // namespace farandole::transport
