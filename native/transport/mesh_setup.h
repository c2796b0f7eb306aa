// The set-up of one world's mesh: every worker connects to every other one, all at once, in the calling thread.
//
// Of each pair the higher rank connects and the lower one accepts; then they make a link of the kind that fits the pair
// (see link_kind.h). A worker that is linked to all others says so to all of them, and the world is formed when all
// have said so: no worker starts before all workers have all links.
//
// All waits are one poll(2). It ends at once when the world is revoked, from whichever thread, and when a worker of
// this host that is linked already has died, however large it is (see lifeline.h); but not where that worker may have
// ended because its world had formed and ended (see SetupCore::die()).
//
// A worker that was proven and closes its connection is lost, and the world with it. This and all other decisions are
// in SetupCore, without sockets (setup_core.h).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/contact.h"
#include "transport/control.h"
#include "transport/dial.h"
#include "transport/endpoint.h"
#include "transport/incoming.h"
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

// One other worker, to which we are linked.
struct LinkedPeer {
  ControlChannel control;
  std::unique_ptr<LinkSetup> link;
};

struct LinkedWorld {
  std::vector<LinkedPeer> peers;  // by rank; one's own is empty
  std::vector<int> hosts;         // see Mesh::hosts()
  std::vector<bool> left;         // by rank: it has already said goodbye again
};

// It has more methods than most classes: one for each thing that can happen at the one poll(2), and each may concern
// any of the peers. What has a state of its own is an object of its own: dials, incoming connections, links, the death
// watch.
class MeshSetup {
 public:
  // All arguments outlive the set-up.
  MeshSetup(const SetupContext& context, const World& world, const std::vector<Contact>& contacts, const Contact& self,
            const base::Deadline& deadline);

  // Throws as Endpoint::form(). If it fails, all connections are closed, and the workers that were already connected
  // have been told why.
  LinkedWorld run();

 private:
  struct Peer {
    int rank = -1;
    const Contact* contact = nullptr;
    std::optional<Dial> control_dial;
    std::optional<Dial> data_dial;
    LinkedPeer linked;
    bool readable = false;  // its control channel has something to read

    bool is_gone() const noexcept { return linked.control.ended().has_value(); }
  };

  int size() const noexcept { return static_cast<int>(peers_.size()); }
  bool complete() const;
  const base::Deadline& give_up() const;

  void wait();
  int timeout_ms() const;
  void read_controls();
  void watch_next_peer();
  void handle_deaths();
  void settle_dials();
  void settle_incoming();
  void note_refusal(const Handshake& handshake);

  void join_control(Peer& peer, PrivateFd fd, bool over_unix, bool connector);
  void join_data(Peer& peer, PrivateFd fd);
  void read(Peer& peer);
  bool finish_exchange(Peer& peer);
  void handle_end(Peer& peer, Sign sign);
  void announce();
  LinkedWorld finish();

  // Ends the world, if there is a cause.
  void obey(std::optional<Cause> cause);
  void send_failure(const base::Error& error);

  const SetupContext context_;
  const World& world_;
  const Contact& self_;
  const base::Deadline deadline_;
  const base::Deadline early_deadline_;  // see give_up()
  const Hello hello_;                    // this worker's, without the receiver
  std::vector<Peer> peers_;
  IncomingConnections incoming_;
  SetupCore core_;
  const base::Deadline death_watch_start_;
  const Mapping* watched_memory_ = nullptr;  // whose lifeline the watcher waits for
  std::unique_ptr<PeerDeathWatcher> death_watcher_;
};

}  // namespace farandole::transport
