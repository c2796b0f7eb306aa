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
      orders_(size) {
  for (Watched& watched : peers) {
    const bool neighbour = is_neighbour(rank_, watched.rank, size);
    peers_.push_back({.watched = std::move(watched), .neighbour = neighbour, .heard_ns = next_tick_ns_});
  }
  thread_ = base::start_thread("farandole-watch", [this] { run(); });
}

Watch::~Watch() { stop(); }

std::vector<int> Watch::stop() noexcept {
  if (thread_.joinable()) {
    orders_.stop.store(true, std::memory_order_release);
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

void Watch::say_goodbye() noexcept {
  orders_.leave.store(true, std::memory_order_release);
  wake();
  const base::MutexLock lock(mutex_);
  goodbye_changed_.wait_for(mutex_, std::chrono::nanoseconds(deadline_ns_), [this] {
    mutex_.assert_held();
    return said_goodbye_;
  });
}

void Watch::suspect(int rank, Sign sign) noexcept {
  orders_.suspected[static_cast<size_t>(rank)].store(static_cast<uint8_t>(sign), std::memory_order_release);
  wake();
}

void Watch::report_death(int rank) noexcept {
  orders_.dead.store(rank, std::memory_order_release);
  wake();
}

void Watch::wake() noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_fd_, &one, sizeof one);
}

void Watch::run() {
  while (!orders_.stop.load(std::memory_order_acquire)) {
    wait();
    const int dead = orders_.dead.exchange(kNobody, std::memory_order_acquire);
    follow_orders();
    read_all();
    handle_death(dead);
    follow_orders();  // what was read may be a cause to spread
    if (now_ns() >= next_tick_ns_) {
      tick();
    }
  }
  follow_orders();
  // Channels that were closed meanwhile are marked as ended; that no longer counts as a loss.
  left_ = true;
  read_all();
  follow_orders();
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

void Watch::follow_orders() {
  for (Peer& peer : peers_) {
    if (peer.suspect_ns == 0 &&
        orders_.suspected[static_cast<size_t>(peer.watched.rank)].load(std::memory_order_acquire) != 0) {
      peer.suspect_ns = now_ns();
    }
  }
  // A worker that has said goodbye has nothing to do with it any more; the others may still finish their last work.
  if (!cause_sent_ && !left_ && world_status_.revoked()) {
    cause_sent_ = true;
    send_to_all(revoke_frame(*world_status_.cause()));
  }
  if (orders_.leave.load(std::memory_order_acquire) && !left_) {
    left_ = true;
    send_to_all(ControlFrame(ControlKind::kGoodbye));
  }
  if (left_ && all_sent()) {
    const base::MutexLock lock(mutex_);
    said_goodbye_ = true;
    goodbye_changed_.notify_all();
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
    handle_frame(peer, *frame);
  }
  if (const auto sign = peer.watched.control.ended(); sign.has_value()) {
    peer.ended = true;
    lose(peer, *sign);
  }
}

// Its channel has been read by now: what it sent before it died, perhaps a cause or a goodbye, has been handled.
void Watch::handle_death(int rank) {
  for (Peer& peer : peers_) {
    if (peer.watched.rank == rank && !peer.ended) {
      peer.ended = true;
      lose(peer, Sign::kClosed);
    }
  }
}

void Watch::handle_frame(Peer& peer, const ControlFrame& frame) {
  if (frame.kind == ControlKind::kGoodbye) {
    peer.watched.left = true;
  } else if (frame.kind == ControlKind::kRevoke && !left_) {
    world_status_.revoke(cause_of(frame));
  } else if (frame.kind == ControlKind::kAbandon && !left_) {
    // The world formed here, but not there: a rank fell silent when it had told some that it was ready, and some not.
    world_status_.revoke({.rank = frame.rank, .sign = Sign::kSilent, .text = frame.text});
  }
}

void Watch::lose(const Peer& peer, Sign sign) {
  if (!left_ && !peer.watched.left) {
    world_status_.revoke({.rank = peer.watched.rank, .sign = sign, .text = describe_loss(peer.watched.rank, sign)});
  }
}

void Watch::tick() {
  const int64_t now = now_ns();
  if (now - next_tick_ns_ > deadline_ns_ / 2) {
    restart_clocks(now);
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
      lose(peer, static_cast<Sign>(orders_.suspected[static_cast<size_t>(peer.watched.rank)].load()));
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
void Watch::restart_clocks(int64_t now) {
  for (Peer& peer : peers_) {
    peer.heard_ns = now;
    peer.suspect_ns = peer.suspect_ns == 0 ? 0 : now;
  }
}

void Watch::send_to_all(const ControlFrame& frame) {
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
