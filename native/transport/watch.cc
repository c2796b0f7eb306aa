#include "transport/watch.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>

#include "base/clock.h"
#include "base/thread.h"

namespace farandole::transport {
namespace {

using base::now_ns;

constexpr int64_t kTickNs = 100'000'000;
// A heartbeat must fit several times into the deadline, however short that is.
constexpr int64_t kTicksInDeadline = 5;
// How long the last words may take to leave when the world is taken down.
constexpr int64_t kLastWordsNs = 100'000'000;

bool is_neighbour(int rank, int other, int size) {
  const int distance = std::abs(rank - other);
  return std::min(distance, size - distance) <= 2;
}

}  // namespace

Watch::Watch(int rank, int size, double deadline_seconds, WorldStatus& world_status, int wake_fd,
             std::vector<Watched> peers)
    : rank_(rank),
      deadline_ns_(std::max<int64_t>(static_cast<int64_t>(deadline_seconds * 1e9), 1'000'000)),
      tick_ns_(std::min(kTickNs, deadline_ns_ / kTicksInDeadline)),
      world_status_(world_status),
      wake_fd_(wake_fd),
      next_tick_ns_(now_ns()),
      suspected_(static_cast<size_t>(size)) {
  for (Watched& watched : peers) {
    const bool neighbour = is_neighbour(rank_, watched.rank, size);
    peers_.push_back({.watched = std::move(watched), .neighbour = neighbour, .heard_ns = next_tick_ns_});
  }
  thread_ = base::start_thread("farandole-watch", [this] { run(); });
}

Watch::~Watch() { stop(); }

std::vector<int> Watch::stop() noexcept {
  if (thread_.joinable()) {
    stop_.store(true, std::memory_order_release);
    wake();
    thread_.join();
  }
  std::vector<int> running;
  for (const Peer& peer : peers_) {
    if (!peer.ended && !peer.watched.left) {
      running.push_back(peer.watched.rank);
    }
  }
  return running;
}

void Watch::part() noexcept {
  part_.store(true, std::memory_order_release);
  wake();
  const base::MutexLock lock(mutex_);
  said_.wait_for(mutex_, std::chrono::nanoseconds(deadline_ns_), [this] {
    mutex_.assert_held();
    return said_goodbye_;
  });
}

void Watch::suspect(int rank, Sign sign) noexcept {
  suspected_[static_cast<size_t>(rank)].store(static_cast<uint8_t>(sign), std::memory_order_release);
  wake();
}

void Watch::report_death(int rank) noexcept {
  dead_.store(rank, std::memory_order_release);
  wake();
}

void Watch::wake() noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_fd_, &one, sizeof one);
}

void Watch::run() {
  while (!stop_.load(std::memory_order_acquire)) {
    wait();
    const int dead = dead_.exchange(kNobody, std::memory_order_acquire);
    obey();
    read_all();
    handle_deaths(dead);
    obey();  // what was read may be a cause to spread
    if (now_ns() >= next_tick_ns_) {
      tick();
    }
  }
  obey();
  // Whoever closed meanwhile is seen to have closed. Nobody is to blame for it any more.
  parted_ = true;
  read_all();
  obey();
  flush_all(now_ns() + kLastWordsNs);
}

// Until something happens or the next tick is due.
void Watch::wait() {
  polled_.assign(1, {.fd = wake_fd_, .events = POLLIN, .revents = 0});
  for (const Peer& peer : peers_) {
    const short events = peer.watched.control.has_unsent() ? POLLIN | POLLOUT : POLLIN;
    polled_.push_back({.fd = peer.ended ? -1 : peer.watched.control.fd(), .events = events, .revents = 0});
  }
  const int64_t left_ns = std::max<int64_t>(0, next_tick_ns_ - now_ns());
  ::poll(polled_.data(), polled_.size(), static_cast<int>((left_ns + 999'999) / 1'000'000));
  uint64_t wakes = 0;
  [[maybe_unused]] const ssize_t got = ::read(wake_fd_, &wakes, sizeof wakes);
}

void Watch::obey() {
  for (Peer& peer : peers_) {
    if (peer.suspect_ns == 0 &&
        suspected_[static_cast<size_t>(peer.watched.rank)].load(std::memory_order_acquire) != 0) {
      peer.suspect_ns = now_ns();
    }
  }
  // Who has said goodbye has nothing to do with it any more; the others may still be at their last work.
  if (!spread_ && !parted_ && world_status_.revoked()) {
    spread_ = true;
    tell_all(revoke_frame(*world_status_.cause()));
  }
  if (part_.load(std::memory_order_acquire) && !parted_) {
    parted_ = true;
    tell_all(ControlFrame(ControlKind::kGoodbye));
  }
  if (parted_ && all_sent()) {
    const base::MutexLock lock(mutex_);
    said_goodbye_ = true;
    said_.notify_all();
  }
}

void Watch::read_all() {
  for (Peer& peer : peers_) {
    if (!peer.ended) {
      peer.watched.control.flush();
      read(peer);
    }
  }
}

void Watch::read(Peer& peer) {
  while (const auto frame = peer.watched.control.receive()) {
    peer.heard_ns = now_ns();
    hear(peer, *frame);
  }
  if (const auto sign = peer.watched.control.ended(); sign.has_value()) {
    peer.ended = true;
    lose(peer, *sign);
  }
}

// Its channels are read by now: what it said before it died, perhaps why, or goodbye, has been heard.
void Watch::handle_deaths(int rank) {
  for (Peer& peer : peers_) {
    if (peer.watched.rank == rank && !peer.ended) {
      peer.ended = true;
      lose(peer, Sign::kClosed);
    }
  }
}

void Watch::hear(Peer& peer, const ControlFrame& frame) {
  if (frame.kind == ControlKind::kGoodbye) {
    peer.watched.left = true;
  } else if (frame.kind == ControlKind::kRevoke && !parted_) {
    world_status_.revoke(cause_of(frame));
  } else if (frame.kind == ControlKind::kAbandon && !parted_) {
    // The world formed here, but not there: a rank fell silent when it had told some that it was ready, and some not.
    world_status_.revoke({.rank = frame.rank, .sign = Sign::kSilent, .text = frame.text});
  }
}

void Watch::lose(const Peer& peer, Sign sign) {
  if (!parted_ && !peer.watched.left) {
    world_status_.revoke({.rank = peer.watched.rank, .sign = sign, .text = describe_loss(peer.watched.rank, sign)});
  }
}

void Watch::tick() {
  const int64_t now = now_ns();
  if (now - next_tick_ns_ > deadline_ns_ / 2) {
    start_clocks_anew(now);
  }
  next_tick_ns_ = now + tick_ns_;
  if (world_status_.revoked()) {
    return;
  }
  for (Peer& peer : peers_) {
    if (peer.ended) {
      continue;
    }
    if (peer.suspect_ns != 0 && now - peer.suspect_ns > deadline_ns_ / 2) {
      lose(peer, static_cast<Sign>(suspected_[static_cast<size_t>(peer.watched.rank)].load()));
    }
    if (!peer.neighbour) {
      continue;
    }
    if (now - peer.heard_ns > deadline_ns_) {
      lose(peer, Sign::kSilent);
    }
    if (!peer.watched.control.has_unsent()) {
      peer.watched.control.send(ControlFrame(ControlKind::kHeartbeat));
    }
  }
}

// A tick that comes far too late: this machine or process was stopped, at whatever place, not the others. What they
// sent meanwhile may not be read yet.
void Watch::start_clocks_anew(int64_t now) {
  for (Peer& peer : peers_) {
    peer.heard_ns = now;
    peer.suspect_ns = peer.suspect_ns == 0 ? 0 : now;
  }
}

void Watch::tell_all(const ControlFrame& frame) {
  for (Peer& peer : peers_) {
    if (!peer.ended) {
      peer.watched.control.send(frame);
    }
  }
}

bool Watch::all_sent() const {
  return std::none_of(peers_.begin(), peers_.end(),
                      [](const Peer& peer) { return !peer.ended && peer.watched.control.has_unsent(); });
}

void Watch::flush_all(int64_t until_ns) {
  while (!all_sent() && now_ns() < until_ns) {
    polled_.clear();
    for (const Peer& peer : peers_) {
      const bool waits = !peer.ended && peer.watched.control.has_unsent();
      polled_.push_back({.fd = waits ? peer.watched.control.fd() : -1, .events = POLLOUT, .revents = 0});
    }
    ::poll(polled_.data(), polled_.size(), 10);
    for (Peer& peer : peers_) {
      peer.watched.control.flush();
    }
  }
}

}  // namespace farandole::transport
