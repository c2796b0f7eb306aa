#include "transport/dial.h"

#include <algorithm>
#include <cerrno>

#include "base/error.h"

namespace farandole::transport {
namespace {

// Between two attempts: short at first, when the other one is about to come; then without wearing anyone down.
constexpr int64_t kFirstPauseNs = 2'000'000;
constexpr int64_t kLongestPauseNs = 100'000'000;

}  // namespace

Dial::Dial(const std::vector<Address>& addresses, std::string secret, const Hello& hello,
           const base::Deadline& deadline)
    : secret_(std::move(secret)), hello_(hello), deadline_(deadline) {
  for (const Address& address : addresses) {
    routes_.push_back({.address = address, .attempt = nullptr, .next_start_ns = 0, .pause_ns = kFirstPauseNs});
  }
}

bool Dial::open(const Route& route) const noexcept {
  const bool unix_first = routes_.front().address.is_unix() && !unix_refused_;
  return !over_ && chosen_ == nullptr && route.attempt == nullptr && (route.address.is_unix() || !unix_first);
}

int64_t Dial::next_start_ns() const noexcept {
  int64_t next = INT64_MAX;
  for (const Route& route : routes_) {
    if (open(route)) {
      next = std::min(next, route.next_start_ns);
    }
  }
  return next;
}

void Dial::start() {
  const int64_t now = base::now_ns();
  for (Route& route : routes_) {
    if (open(route) && route.next_start_ns <= now) {
      start(route);
    }
  }
}

void Dial::start(Route& route) {
  Connecting connecting = start_connecting(route.address);
  if (connecting.error == EMFILE || connecting.error == ENFILE) {
    throw base::Error(base::Code::kUnavailable, "no descriptor is left for a connection to rank " +
                                                    std::to_string(hello_.to) +
                                                    "; raise the limit of open files (ulimit -n)");
  }
  if (!connecting.fd) {
    // A full backlog passes; anything else says that its Unix socket cannot be reached from here.
    unix_refused_ = unix_refused_ || (route.address.is_unix() && connecting.error != EAGAIN);
    put_off(route);
    return;
  }
  route.attempt = std::make_unique<Attempt>(std::move(connecting.fd), connecting.error == EINPROGRESS,
                                            Handshake::connecting(secret_, hello_), deadline_);
}

void Dial::put_off(Route& route) {
  route.attempt = nullptr;
  route.next_start_ns = base::now_ns() + route.pause_ns;
  route.pause_ns = std::min(route.pause_ns * 2, kLongestPauseNs);
}

void Dial::collect(std::vector<Attempt*>& attempts) const {
  for (const Route& route : routes_) {
    if (route.attempt != nullptr) {
      attempts.push_back(route.attempt.get());
    }
  }
}

std::optional<Dial::Reached> Dial::settle() {
  for (Route& route : routes_) {
    if (route.attempt == nullptr) {
      continue;
    }
    if (route.attempt->convinced()) {
      choose(route);  // which may take it to its end at once
    }
    if (route.attempt->failed()) {
      if (route.attempt->handshake().refusal() != Refusal::kNone) {
        refusal_ = route.attempt->handshake().refusal();
      }
      chosen_ = chosen_ == &route ? nullptr : chosen_;
      put_off(route);
    } else if (route.attempt->proven()) {
      over_ = true;
      Reached reached{route.attempt->take_fd(), route.address};
      route.attempt = nullptr;
      return reached;
    }
  }
  return std::nullopt;
}

// Both sides must end with the same connection, so only one is ever proven.
void Dial::choose(Route& route) {
  chosen_ = &route;
  for (Route& other : routes_) {
    if (&other != &route) {
      other.attempt = nullptr;
    }
  }
  route.attempt->prove();
}

}  // namespace farandole::transport
