// Connections that come in at the listeners, from workers of one world, and that have yet to prove themselves.
//
// Any process may connect. Until a connection has proven that it knows the job's secret, it costs one Attempt and a few
// seconds, and nothing waits for it. When there are too many, or no descriptor is left, the oldest one is dropped.
#pragma once

#include <poll.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/attempt.h"
#include "transport/socket.h"

namespace farandole::transport {

class IncomingConnections {
 public:
  // `expected` is this worker's own hello, see Handshake::accepting(); `size` is that of the world. The listeners
  // outlive this object.
  IncomingConnections(std::span<const Listener> listeners, std::string secret, const Hello& expected, int size);

  // Accepts the connections that wait at the listeners. Throws Error(kUnavailable) when no descriptor is left at all.
  void accept_all();
  // Adds the listeners' descriptors, for poll(2).
  void collect(std::vector<pollfd>& polled) const;
  // Adds the attempts that are not proven yet.
  void collect(std::vector<Attempt*>& attempts) const;
  // Returns when the next attempt is given up, in nanoseconds from now; INT64_MAX: never.
  int64_t left_ns() const;

  // Returns each connection that is proven by now and comes from a rank that is wanted, and the handshake of each one
  // that failed.
  void settle(const std::function<bool(int from)>& wants,
              const std::function<void(Attempt& attempt, bool over_unix)>& proven,
              const std::function<void(const Handshake& handshake)>& failed);

 private:
  struct Connection {
    std::unique_ptr<Attempt> attempt;
    bool over_unix = false;
  };

  void make_room(int error);

  const std::span<const Listener> listeners_;
  const std::string secret_;
  const Hello expected_;
  const int size_;
  std::deque<Connection> connections_;  // the oldest first
};

}  // namespace farandole::transport
