// The connections of one worker to others of its world that are being made or have yet to be proven: it connects to
// lower ranks, and higher ones connect to it. For one thread at a time, which waits for them with one poll(2).
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <list>
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
#include "transport/link_kind.h"

namespace farandole::transport {

// The proven control connection to one other worker, and the link that is made with it.
struct LinkedPeer {
  ControlChannel control;
  std::unique_ptr<LinkSetup> link;
  bool shares_memory = false;
};

class Connections {
 public:
  // The listeners outlive this object. `contacts`: of all ranks.
  Connections(std::span<const Listener> listeners, const World& world, std::vector<Contact> contacts);

  const std::vector<Contact>& contacts() const noexcept { return contacts_; }

  // Begins to connect to a lower rank.
  void dial(int peer, const base::Deadline& deadline);

  // Adds what poll(2) is to wait for, and begins the attempts that are due. Throws Error(kUnavailable) when no
  // descriptor is left.
  void prepare_wait(std::vector<pollfd>& polled);
  // After poll(2): moves what can be moved, and accepts what has come. `polled` begins with what prepare_wait() added.
  void finish_wait(std::span<const pollfd> polled);
  // When settle() has something to do next, in nanoseconds from now, even if nothing moves; INT64_MAX: never.
  int64_t left_ns() const;

  struct Proven {
    int peer = -1;
    Channel channel = Channel::kControl;
    PrivateFd fd;
    Address address;  // to which this worker has connected
    bool over_unix = false;
    bool connector = false;  // this worker has connected
  };
  struct Events {
    // Whether connections from this rank are wanted now; others stay here.
    std::function<bool(int peer)> wants;
    std::function<void(Proven connection)> proven;
    // A handshake with this rank has failed, for this reason.
    std::function<void(int peer, Refusal refusal)> refused;
  };
  // Reports what has happened.
  void settle(const Events& events);

  // Begins the link of the kind that fits a control connection. If that wants a data connection, and this worker is the
  // connector, it is dialled.
  LinkedPeer begin_link(const LinkContext& context, Proven control, const base::Deadline& deadline);

 private:
  struct Dialled {
    int peer;
    Channel channel;
    Dial dial;
    bool over = false;
  };

  void dial(int peer, Channel channel, const std::vector<Address>& addresses, const base::Deadline& deadline);
  void settle_dials(const Events& events);
  void settle_incoming(const Events& events);

  const std::vector<Contact> contacts_;
  const std::string secret_;
  const Hello hello_;  // this worker's, without the receiver
  std::list<Dialled> dials_;
  IncomingConnections incoming_;
  std::vector<Attempt*> waited_for_;  // by the wait that has been prepared
};

}  // namespace farandole::transport
