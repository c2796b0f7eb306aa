#include "transport/dial.h"

#include <algorithm>
#include <cerrno>

#include "base/error.h"

namespace farandole::transport {
namespace {

// The time between two attempts: short at first, when the other worker is about to listen; then long enough to cost
// nothing.
constexpr int64_t kFirstPauseNs = 2'000'000;
constexpr int64_t kLongestPauseNs = 100'000'000;

// A better route gets twice the time that the first one took, within these bounds: the lower one covers the time that
// the scheduler of a busy host may take between two answers, the upper one is what an address without an answer may
// cost.
constexpr int64_t kShortestGraceNs = 20'000'000;
constexpr int64_t kLongestGraceNs = 200'000'000;

}  // namespace

Dial::Dial(const std::vector<Address>& addresses, std::string secret, const Hello& hello,
           const base::Deadline& deadline)
    : secret_(std::move(secret)), hello_(hello), deadline_(deadline) {
  for (const Address& address : addresses) {
    routes_.emplace_back();
    routes_.back().address = address;
    routes_.back().pause_ns = kFirstPauseNs;
  }
}

bool Dial::open(const Route& route) const noexcept {
  const bool unix_first = routes_.front().address.is_unix() && !unix_refused_;
  return !over_ && chosen_ == nullptr && route.attempt == nullptr && (route.address.is_unix() || !unix_first);
}

// An attempt is under way, or about to be repeated because the other worker closed the last one: that worker may have
// been in an earlier generation, and then all routes to it are refused and tried again one after the other.
bool Dial::may_come(const Route& route) const noexcept {
  return route.attempt != nullptr || (route.connected && route.next_start_ns < grace_end_ns_);
}

int64_t Dial::next_turn_ns() const noexcept {
  int64_t next = grace_end_ns_;
  for (const Route& route : routes_) {
    if (open(route)) {
      next = std::min(next, route.next_start_ns);
    }
  }
  return next;
}

void Dial::start(int64_t now_ns) {
  for (Route& route : routes_) {
    if (open(route) && route.next_start_ns <= now_ns) {
      start(route, now_ns);
    }
  }
}

void Dial::start(Route& route, int64_t now_ns) {
  Connecting connecting = start_connecting(route.address);
  if (connecting.error == EMFILE || connecting.error == ENFILE) {
    throw base::Error(base::Code::kUnavailable, "no descriptor is left for a connection to rank " +
                                                    std::to_string(hello_.to) +
                                                    "; raise the limit of open files (ulimit -n)");
  }
  if (!connecting.fd) {
    // A full backlog is temporary; any other error means that the Unix socket cannot be reached from here.
    unix_refused_ = unix_refused_ || (route.address.is_unix() && connecting.error != EAGAIN);
    put_off(route, false, now_ns);
    return;
  }
  route.started_ns = now_ns;
  route.attempt = std::make_unique<Attempt>(std::move(connecting.fd), connecting.error == EINPROGRESS,
                                            Handshake::connecting(secret_, hello_), deadline_);
}

void Dial::put_off(Route& route, bool connected, int64_t now_ns) {
  route.attempt = nullptr;
  route.connected = connected;
  route.next_start_ns = now_ns + route.pause_ns;
  route.pause_ns = std::min(route.pause_ns * 2, kLongestPauseNs);
}

void Dial::collect(std::vector<Attempt*>& attempts) const {
  for (const Route& route : routes_) {
    if (route.attempt != nullptr) {
      attempts.push_back(route.attempt.get());
    }
  }
}

std::optional<Dial::Reached> Dial::settle(int64_t now_ns) {
  put_off_failed(now_ns);
  if (chosen_ == nullptr) {
    choose(now_ns);  // this may complete a route at once
    put_off_failed(now_ns);
  }
  if (over_ || chosen_ == nullptr || !chosen_->attempt->proven()) {
    return std::nullopt;
  }
  over_ = true;
  Reached reached{chosen_->attempt->take_fd(), chosen_->address};
  chosen_->attempt = nullptr;
  return reached;
}

void Dial::put_off_failed(int64_t now_ns) {
  for (Route& route : routes_) {
    if (route.attempt == nullptr || !route.attempt->failed()) {
      continue;
    }
    if (const Refusal refusal = route.attempt->handshake().refusal(); refusal != Refusal::kNone) {
      refusal_ = refusal;
    }
    chosen_ = chosen_ == &route ? nullptr : chosen_;
    put_off(route, route.attempt->connected(), now_ns);
  }
}

// Chooses the most preferred of the convinced routes, unless a better one may still come.
void Dial::choose(int64_t now_ns) {
  const auto convinced = std::find_if(routes_.begin(), routes_.end(), [](const Route& route) {
    return route.attempt != nullptr && route.attempt->convinced();
  });
  if (convinced == routes_.end()) {
    grace_end_ns_ = kNever;
    return;
  }
  if (grace_end_ns_ == kNever) {
    grace_end_ns_ = now_ns + std::clamp(2 * (now_ns - convinced->started_ns), kShortestGraceNs, kLongestGraceNs);
  }
  const bool better = std::any_of(routes_.begin(), convinced, [this](const Route& route) { return may_come(route); });
  if (!better || now_ns >= grace_end_ns_) {
    prove(*convinced);
  }
}

// Both sides must end with the same connection, so only one is ever proven.
void Dial::prove(Route& route) {
  chosen_ = &route;
  grace_end_ns_ = kNever;
  for (Route& other : routes_) {
    if (&other != &route) {
      other.attempt = nullptr;
    }
  }
  route.attempt->prove();
}

}  // namespace farandole::transport
