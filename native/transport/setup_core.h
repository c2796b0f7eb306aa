// What one worker decides while a world's mesh is set up: when it tells others that it is ready, when the world has
// formed, and when it is lost. No threads, no I/O, no clock: MeshSetup drives it with sockets (mesh_setup.h has the
// rules), a simulation with messages that are only counted.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "transport/control.h"
#include "transport/handshake.h"
#include "transport/hosts.h"
#include "transport/revocation_graph.h"
#include "transport/world_status.h"

namespace farandole::transport {

// It has more methods than most classes: one for each thing that can happen to a connection, and one for each question
// that its driver has.
class SetupCore {
 public:
  // `hosts`: of each rank, as the contacts say (hosts.h); it outlives this object.
  SetupCore(int rank, uint64_t generation, std::span<const int> hosts);

  // The workers to which this one is linked before the world forms (start_graph.h), in ascending order. Every `peer`
  // below is one of them.
  const std::vector<int>& peers() const noexcept { return ranks_; }
  bool is_peer(int rank) const noexcept;

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

  struct Outgoing {
    ControlFrame frame;
    std::vector<int> to;
  };
  // Returns what is to be sent now, if there is anything; to be called until there is nothing. Throws
  // Error(kUnavailable) if it does not fit in a frame.
  std::optional<Outgoing> take_outgoing();

  bool lacks_a_link() const noexcept { return linked_ < peers_.size(); }
  bool has_left(int peer) const noexcept { return state(peer).left; }
  // The world may form with it although its connection has ended.
  bool keeps(int peer) const noexcept { return has_left(peer) || may_have_left(peer); }
  bool has_formed() const noexcept { return stage_ == Stage::kFormed && !lacks_a_link(); }
  // When to give up, if nothing happens: a part of the last moments before the deadline, of which 0 is the beginning
  // and 1 the end. The worker that knows best which one is missing gives up first, and tells the others.
  double give_up_part() const;
  // Requires that the world has not formed.
  base::Error timeout() const;
  // See Mesh::hosts(). Requires that the world has formed. Throws Error(kUnavailable) if not all pairs of workers of
  // this host share memory.
  std::vector<int> hosts() const;

 private:
  enum class Stage : uint8_t {
    kLinking,  // it waits for its own links, and for the workers below it in the tree
    kReady,    // it has said so, and waits for the answer
    kAgreed,   // the world has formed, and those below have not been told
    kFormed,
  };

  struct PeerState {
    bool linked = false;
    bool mutual = false;
    bool is_child = false;  // it is below this one in the tree
    bool ready = false;     // it and all below it have their links
    bool left = false;      // it has already said goodbye again
    bool shares_memory = false;
    Refusal refusal = Refusal::kNone;
  };

  int size() const noexcept { return static_cast<int>(hosts_.size()); }
  // Requires rank > 0.
  int parent() const noexcept;
  // The world may have formed for it and ended; others send the cause.
  bool may_have_left(int peer) const noexcept {
    return stage_ != Stage::kLinking && !tell_each_other(peer, rank_, size());
  }
  size_t index_of(int peer) const noexcept;
  PeerState& state(int peer) noexcept { return peers_[index_of(peer)]; }
  const PeerState& state(int peer) const noexcept { return peers_[index_of(peer)]; }
  // Of the connection that is no more, keeps what is known of the worker without it.
  void reset(PeerState& peer);
  bool shares_memory(int rank) const;
  std::vector<int> unready_children() const;
  std::vector<int> children() const;
  void correct_own_host();
  std::optional<Cause> take_corrections(int peer, const ControlFrame& frame);
  ControlFrame frame_with_corrections(ControlKind kind) const;

  const int rank_;
  const uint64_t generation_;
  const std::span<const int> hosts_;  // as the contacts say
  HostCorrections corrections_;       // that this worker knows of
  const std::vector<int> ranks_;
  std::vector<PeerState> peers_;  // in the order of ranks_
  size_t linked_ = 0;             // how many are
  Stage stage_ = Stage::kLinking;
};

}  // namespace farandole::transport
