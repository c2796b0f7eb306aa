// The decisions of one worker's watch: when another worker of the world is lost, and what the others are told about it.
// No threads, no I/O, no clock: its driver reports what was received, what has ended and what time it is, and carries
// out the answers. Watch drives it with sockets and a thread (watch.h has the rules of the protocol); a simulation
// drives thousands with messages that are only counted.
//
// Times are nanoseconds of any one clock. Its work for a frame and for a tick does not grow with the world, except for
// the goodbye, which it sends to all.
//
// It has more methods than most classes: one for each thing that may happen, and short ones for what they share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "transport/control.h"
#include "transport/world_status.h"

namespace farandole::transport {

class WatchCore {
 public:
  // `peers`: the workers with which there is a control channel, in ascending order of their ranks.
  WatchCore(int rank, int size, const std::vector<int>& peers, double deadline_seconds, int64_t now_ns);

  int64_t deadline_ns() const noexcept { return deadline_ns_; }
  // When tick() is due. A new suspicion may bring it forward.
  int64_t next_tick_ns() const noexcept { return next_tick_ns_; }

  // There is a control channel with one more.
  void add(int peer);

  // --- What has happened. A cause that is returned is the world's end, unless the world has ended before: in either
  // case, spread() is called next.
  std::optional<Cause> receive(int from, const ControlFrame& frame, int64_t now_ns);
  // Nothing more comes from this worker. Only what it sent before tells whether that is a loss. If that worker
  // tells this one nothing (revocation_graph.h), the world may have ended: then a revocation is on its way.
  std::optional<Cause> end(int rank, Sign sign, int64_t now_ns);
  // Its process has certainly ended, whatever its channel says. If that worker tells this one nothing, it may have
  // ended because the world had ended before: the cause has a moment to come from others.
  std::optional<Cause> die(int rank, int64_t now_ns);
  // A data link to it has ended. Its control channel may still bring the reason.
  void suspect(int rank, Sign sign, int64_t now_ns);

  struct Tick {
    std::optional<Cause> cause;
    std::vector<int> beats;  // the ranks to which a heartbeat is sent now
  };
  Tick tick(int64_t now_ns);

  // --- What others are to be told; none: nothing, or they have been told.
  struct Outgoing {
    ControlFrame frame;
    std::vector<int> to;  // none of which has ended
  };
  // The world has ended, here or elsewhere.
  std::optional<Outgoing> spread(const Cause& cause);
  // This worker leaves in good order.
  std::optional<Outgoing> leave();

  // From now on nothing is a loss: this worker has nothing more to do with its world.
  void stop_judging() noexcept { left_ = true; }
  bool is_over() const noexcept { return over_; }
  bool has_left() const noexcept { return left_; }
  bool has_ended(int rank) const noexcept { return state(rank).ended; }
  // The ranks of which neither a goodbye nor the end was seen.
  std::vector<int> running() const;

 private:
  struct PeerState {
    int rank;
    bool ended = false;
    bool left = false;  // it has said goodbye
  };
  struct Neighbour {
    int rank;
    int64_t heard_ns;  // when its last frame came
  };
  struct Suspect {
    int rank;
    Sign sign;
    int64_t since_ns;
    int64_t patience_ns;    // how long the cause may be on its way
    bool has_died = false;  // nothing that is noticed later says more
  };

  PeerState& state(int rank) noexcept { return *std::ranges::lower_bound(peers_, rank, {}, &PeerState::rank); }
  const PeerState& state(int rank) const noexcept {
    return *std::ranges::lower_bound(peers_, rank, {}, &PeerState::rank);
  }
  // Whether a worker that ends its world tells this one before it closes its connections.
  bool tells_us(int rank) const noexcept;
  // Whether a worker that we tell would not pass it on, so that we have to tell all.
  bool lacks_forwarder() const;
  // The others that have not ended, all or those that we tell of the world's end.
  std::vector<int> connected(bool only_told) const;
  void add_suspect(const Suspect& suspect);
  std::optional<Cause> loss_of(int rank, Sign sign) const;
  // Whether the end of this worker would be a loss.
  bool may_be_lost(int rank) const noexcept { return !left_ && !state(rank).left; }
  // When the loss of a worker that is suspected, or silent, is certain.
  template <typename Visit>
  void for_each_pending_loss(const Visit& visit) const;
  std::optional<Cause> first_loss(int64_t now_ns) const;
  int64_t next_due() const;
  void restart_clocks(int64_t now_ns);

  const int rank_;
  const int size_;
  const int64_t deadline_ns_;
  std::vector<PeerState> peers_;  // in ascending order of their ranks, as are the next
  std::vector<Neighbour> neighbours_;
  std::vector<Suspect> suspects_;
  int64_t next_beat_ns_;
  int64_t next_tick_ns_;
  bool left_ = false;  // our goodbye was sent: nothing more is a loss
  bool over_ = false;  // the world has ended
};

}  // namespace farandole::transport
