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
#include "transport/introduction.h"
#include "transport/lifeline.h"
#include "transport/prospect.h"
#include "transport/ring.h"

namespace farandole::transport {

// Workers that got our memory: by contact id, with their memory, or null while that has not come.
using Acquaintances = std::map<std::string, std::shared_ptr<const Mapping>>;

// What the forming of a world gets from its endpoint. All outlive it.
struct Ground {
  const EndpointSettings& settings;
  std::span<const Listener> listeners;
  Arena& arena;
  int doorbell_fd;
  Prospect& prospect;
  MappingCache& mappings;
  std::vector<void*>& rings;  // the blocks of all rings that are made are added here
  Acquaintances& acquainted;  // who gets our memory is added here
};

// One other worker, to whom we are linked.
struct Joined {
  ControlChannel control;
  bool left = false;  // it has already said goodbye again
  // Over TCP:
  PrivateFd data;
  // In shared memory:
  std::shared_ptr<const Mapping> memory;
  PrivateFd doorbell;
  Ring* outgoing = nullptr;
  Ring* incoming = nullptr;
};

struct Formed {
  std::vector<Joined> peers;  // by rank; one's own is empty
  std::vector<int> hosts;
};

class Forming {
 public:
  Forming(Ground ground, const World& world, const std::vector<Contact>& contacts, const Contact& self,
          const base::Deadline& deadline);

  // Throws as Endpoint::form(). Once it has failed, all connections are closed, and the workers that were
  // already connected have been told why.
  Formed run();

 private:
  struct Peer {
    int rank = -1;
    std::string id;
    std::optional<Dial> control_dial;
    std::optional<Dial> data_dial;
    Joined joined;
    bool over_unix = false;
    bool introduced = false;
    bool mutual = false;  // the other side has joined this connection, too
    bool ready = false;
    bool readable = false;  // its control channel has something to read
    Refusal refusal = Refusal::kNone;

    bool linked() const noexcept { return joined.control && (over_unix ? introduced : static_cast<bool>(joined.data)); }
    bool gone() const noexcept { return joined.control.ended().has_value(); }
  };
  struct Stranger {
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
  void keep_vigil();
  void mourn();
  void accept_all();
  void refuse_for_lack_of_descriptors(int error);
  void settle_dials();
  void settle_strangers();
  void note(const Handshake& handshake);

  void join_control(Peer& peer, PrivateFd fd, bool over_unix);
  void join_data(Peer& peer, PrivateFd fd);
  void introduce(Peer& peer);
  void read(Peer& peer);
  void read_introduction(Peer& peer);
  void adopt(Peer& peer, Introduced introduced);
  void hear(Peer& peer, const ControlFrame& frame);
  void hear_end(Peer& peer, Sign sign);
  void announce();
  Formed finish();

  [[noreturn]] void lose(Cause cause);
  [[noreturn]] void lose(const Peer& peer, Sign sign);
  [[noreturn]] void run_out_of_time();
  void tell(const base::Error& error);

  Ground ground_;
  const World& world_;
  const Contact& self_;
  const base::Deadline deadline_;
  const base::Deadline early_deadline_;  // see give_up()
  const int size_;
  base::Digest digest_;  // of the world, see Hello
  std::vector<Peer> peers_;
  std::deque<Stranger> strangers_;  // the oldest first
  Sharing shares_;
  bool announced_ = false;
  const base::Deadline vigil_start_;
  const Mapping* guarded_ = nullptr;  // whose lifeline the vigil watches
  std::unique_ptr<Vigil> vigil_;
};

}  // namespace farandole::transport
