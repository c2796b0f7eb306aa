#include "transport/incoming.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace farandole::transport {
namespace {

// How long a connection may take to prove itself. A worker needs milliseconds.
constexpr double kProofSeconds = 5.0;
// The most unproven connections in addition to those that may be workers; if there are more, the oldest is dropped.
constexpr size_t kMostUnproven = 64;
// The most connections that are accepted in one turn, so that a flood of strangers does not starve the workers.
constexpr int kAcceptsPerTurn = 64;

}  // namespace

IncomingConnections::IncomingConnections(std::span<const Listener> listeners, std::string secret, const Hello& expected,
                                         int size)
    : listeners_(listeners), secret_(std::move(secret)), expected_(expected), size_(size) {}

void IncomingConnections::accept_all() {
  // A worker has one connection under way to each listener, while it finds out which is best, or one for data.
  const size_t most = kMostUnproven + (1 + listeners_.size()) * static_cast<size_t>(size_);
  for (const Listener& listener : listeners_) {
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
      int error = 0;
      PrivateFd fd = accept_from(listener, error);
      if (error == EAGAIN || error == EWOULDBLOCK) {
        break;
      }
      if (!fd) {
        make_room(error);
        continue;
      }
      if (connections_.size() >= most) {
        connections_.pop_front();
      }
      connections_.push_back(
          {std::make_unique<Attempt>(std::move(fd), false, Handshake::accepting(secret_, expected_, size_),
                                     base::Deadline::after_seconds(kProofSeconds)),
           listener.address.is_unix()});
    }
  }
}

// Drops the oldest connection, if that can help. Other errors are those of a connection that ended before it was
// accepted.
void IncomingConnections::make_room(int error) {
  if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) {
    return;
  }
  if (connections_.empty()) {
    throw base::Error(base::Code::kUnavailable, std::string("no connection can be accepted: ") + std::strerror(error) +
                                                    "; raise the limit of open files (ulimit -n)");
  }
  connections_.pop_front();
}

void IncomingConnections::collect(std::vector<pollfd>& polled) const {
  for (const Listener& listener : listeners_) {
    polled.push_back({.fd = listener.fd.get(), .events = POLLIN, .revents = 0});
  }
}

void IncomingConnections::collect(std::vector<Attempt*>& attempts) const {
  for (const Connection& connection : connections_) {
    if (!connection.attempt->proven()) {
      attempts.push_back(connection.attempt.get());
    }
  }
}

int64_t IncomingConnections::left_ns() const {
  int64_t left = INT64_MAX;
  for (const Connection& connection : connections_) {
    if (!connection.attempt->proven()) {
      left = std::min(left, connection.attempt->give_up().left_ns());
    }
  }
  return left;
}

void IncomingConnections::settle(const std::function<bool(int from)>& wants,
                                 const std::function<void(Attempt& attempt, bool over_unix)>& proven,
                                 const std::function<void(const Handshake& handshake)>& failed) {
  for (Connection& connection : connections_) {
    Attempt& attempt = *connection.attempt;
    if (attempt.failed()) {
      failed(attempt.handshake());
    } else if (attempt.proven() && wants(attempt.handshake().hello().from)) {
      proven(attempt, connection.over_unix);
    } else {
      continue;
    }
    connection.attempt = nullptr;
  }
  std::erase_if(connections_, [](const Connection& connection) { return connection.attempt == nullptr; });
}

}  // namespace farandole::transport
