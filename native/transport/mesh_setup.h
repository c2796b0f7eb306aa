// The making of one world: every worker connects to every other one, all at once, in the calling thread.
//
// Of each pair the higher rank connects and the lower one accepts. A pair is linked when it has shared memory
// over a Unix socket, or a control and a data connection over TCP. Who is linked to all says so to all, and the
// world is formed when all have said so: so nobody starts before everybody has everybody's links.
//
// All waits are one, which ends at once when the world is revoked, from whichever thread, and when a worker of this
// host that is linked already has died, however large it is (see lifeline.h).
//
// Anybody may connect to the listeners. Until a connection has proven that it knows the secret, it costs one
// Attempt and a few seconds, and nothing waits for it. A worker that was proven and closes again is lost, and
// the world with it.
#pragma once

#include <poll.h>

#include <deque>
#include <map>
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
#include "transport/hosts.h"
#include "transport/lifeline.h"
#include "transport/pending_world.h"
#include "transport/ring_buffer.h"
#include "transport/shm_exchange.h"

namespace farandole::transport {

// Workers that got our memory: by contact id, with their memory, or null while that has not come.
using MemoryHolders = std::map<std::string, std::shared_ptr<const Mapping>>;

// What the forming of a world gets from its endpoint. All outlive it.
struct SetupContext {
  const EndpointSettings& settings;
  std::span<const Listener> listeners;
  Arena& arena;
  int doorbell_fd;
  PendingWorld& pending_world;
  MappingCache& mappings;
  std::vector<void*>& ring_buffers;  // the blocks of all ring buffers that are made are added here
  MemoryHolders& memory_holders;     // who gets our memory is added here
};

// One other worker, to whom we are linked.
struct LinkedPeer {
  ControlChannel control;
  bool left = false;  // it has already said goodbye again
  // Over TCP:
  PrivateFd data;
  // In shared memory:
  std::shared_ptr<const Mapping> memory;
  PrivateFd doorbell;
  RingBuffer* outgoing = nullptr;
  RingBuffer* incoming = nullptr;
};

struct LinkedWorld {
  std::vector<LinkedPeer> peers;  // by rank; one's own is empty
  std::vector<int> hosts;
};

class MeshSetup {
 public:
  MeshSetup(SetupContext context, const World& world, const std::vector<Contact>& contacts, const Contact& self,
            const base::Deadline& deadline);

  // Throws as Endpoint::form(). Once it has failed, all connections are closed, and the workers that were
  // already connected have been told why.
  LinkedWorld run();

 private:
  struct Peer {
    int rank = -1;
    std::string id;
    std::optional<Dial> control_dial;
    std::optional<Dial> data_dial;
    LinkedPeer joined;
    bool over_unix = false;
    bool shm_linked = false;
    bool mutual = false;  // the other side has joined this connection, too
    bool ready = false;
    bool readable = false;  // its control channel has something to read
    Refusal refusal = Refusal::kNone;

    bool linked() const noexcept { return joined.control && (over_unix ? shm_linked : static_cast<bool>(joined.data)); }
    bool gone() const noexcept { return joined.control.ended().has_value(); }
  };
  struct Unproven {
    std::unique_ptr<Attempt> attempt;
    bool over_unix = false;
  };

  Hello hello_to(int peer, Channel channel) const;
  std::vector<Address> addresses_of(const Contact& contact) const;
  bool complete() const;
  bool lacks_a_link() const;
  const base::Deadline& give_up() const;

  void start_dials();
  void wait();
  int patience_ms() const;
  void read_controls();
  void watch_next_peer();
  void handle_deaths();
  void accept_all();
  void refuse_for_lack_of_descriptors(int error);
  void settle_dials();
  void settle_unproven();
  void note(const Handshake& handshake);

  void join_control(Peer& peer, PrivateFd fd, bool over_unix);
  void join_data(Peer& peer, PrivateFd fd);
  void offer_shm(Peer& peer);
  void read(Peer& peer);
  void read_shm_offer(Peer& peer);
  void adopt(Peer& peer, ReceivedShmOffer shm_linked);
  void hear(Peer& peer, const ControlFrame& frame);
  void hear_end(Peer& peer, Sign sign);
  void announce();
  LinkedWorld finish();

  [[noreturn]] void lose(Cause cause);
  [[noreturn]] void lose(const Peer& peer, Sign sign);
  [[noreturn]] void run_out_of_time();
  void tell(const base::Error& error);

  SetupContext context_;
  const World& world_;
  const Contact& self_;
  const base::Deadline deadline_;
  const base::Deadline early_deadline_;  // see give_up()
  const int size_;
  base::Digest digest_;  // of the world, see Hello
  std::vector<Peer> peers_;
  std::deque<Unproven> unproven_;  // the oldest first
  Sharing shares_;
  bool announced_ = false;
  const base::Deadline death_watch_start_;
  const Mapping* watched_memory_ = nullptr;  // whose lifeline the watcher watches
  std::unique_ptr<PeerDeathWatcher> death_watcher_;
};

}  // namespace farandole::transport
