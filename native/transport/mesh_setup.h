// The set-up of one world's mesh, in the calling thread: every worker connects to those workers to which it has links
// from the start (start_graph.h), all at once. In small worlds these are all.
//
// Of each pair the higher rank connects and the lower one accepts; then they make a link of the kind that fits the pair
// (see link_kind.h). A worker that has all its links says so along a tree, and rank 0 tells all when the world has
// formed: no worker starts before all workers have these links.
//
// All waits are one poll(2). It ends at once when the world is revoked, from whichever thread, and when a worker of
// this host that is linked already has died, however large it is (see lifeline.h); but not where that worker may have
// ended because its world had formed and ended (see SetupCore::die()).
//
// A worker that was proven and closes its connection is lost, and the world with it. This and all other decisions are
// in SetupCore, without sockets (setup_core.h).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "transport/connections.h"
#include "transport/control.h"
#include "transport/endpoint.h"
#include "transport/lifeline.h"
#include "transport/link_kind.h"
#include "transport/pending_world.h"
#include "transport/setup_core.h"

namespace farandole::transport {

// The parts of an endpoint that the set-up of a world uses. All of it outlives the set-up.
struct SetupContext {
  std::span<const Listener> listeners;
  PendingWorld& pending_world;
  LinkContext links;
};

struct LinkedWorld {
  // A worker with which there is a link.
  struct Peer {
    int rank;
    LinkedPeer linked;
    bool left;  // it has already said goodbye again
  };

  std::vector<Peer> peers;                   // in ascending order of their ranks
  std::vector<int> hosts;                    // see Mesh::hosts()
  std::unique_ptr<Connections> connections;  // of workers without a link, perhaps, which were early
};

class MeshSetup {
 public:
  // All arguments outlive the set-up.
  MeshSetup(const SetupContext& context, const World& world, const std::vector<Contact>& contacts,
            const base::Deadline& deadline);

  // Throws as Endpoint::form(). If it fails, all connections are closed, and the workers that were already connected
  // have been told why.
  LinkedWorld run();

 private:
  struct Peer {
    int rank = -1;
    LinkedPeer linked;
    bool readable = false;  // its control channel has something to read

    bool is_gone() const noexcept { return linked.control.ended().has_value(); }
  };

  bool complete() const;
  int64_t left_ns() const;

  void wait();
  int timeout_ms() const;
  void read_controls();
  void watch_next_peer();
  void handle_deaths();
  void settle();

  void join_control(Connections::Proven connection);
  void join_data(Peer& peer, PrivateFd fd);
  void read(Peer& peer);
  bool finish_exchange(Peer& peer);
  void handle_end(Peer& peer, Sign sign);
  void send_outgoing();
  LinkedWorld finish();

  // Ends the world, if there is a cause.
  void obey(std::optional<Cause> cause);
  void send_failure(const base::Error& error);

  const SetupContext context_;
  const int rank_;
  const base::Deadline deadline_;
  const int64_t last_moments_ns_;  // before the deadline, in which workers give up one after the other
  const std::vector<int> hosts_;   // as the contacts say
  std::unique_ptr<Connections> connections_;
  SetupCore core_;
  std::map<int, Peer> peers_;  // by rank
  const base::Deadline death_watch_start_;
  const Mapping* watched_memory_ = nullptr;  // whose lifeline the watcher waits for
  std::unique_ptr<PeerDeathWatcher> death_watcher_;
};

}  // namespace farandole::transport
