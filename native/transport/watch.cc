#include "transport/watch.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"

namespace farandole::transport {
namespace {

using base::now_ns;

constexpr int64_t kTickNs = 100'000'000;
// A heartbeat must fit several times into the deadline, however short that is.
constexpr int64_t kTicksInDeadline = 5;
// How long the last frames may take to leave when the world is taken down.
constexpr int64_t kLastWordsNs = 100'000'000;
// The number of the eventfd that wakes the watch thread, for epoll; channels have the positions of their peers.
constexpr uint64_t kWakeFd = UINT64_MAX;

bool is_neighbour(int rank, int other, int size) {
  const int distance = std::abs(rank - other);
  return std::min(distance, size - distance) <= 2;
}

PrivateFd make_epoll_fd() {
  const ForkHold hold;
  PrivateFd fd(::epoll_create1(EPOLL_CLOEXEC), hold);
  if (!fd) {
    throw base::Error(base::Code::kUnavailable, std::string("no epoll instance can be made: ") + std::strerror(errno) +
                                                    "; raise the limit of open files (ulimit -n)");
  }
  return fd;
}

}  // namespace

Watch::Watch(int rank, int size, double deadline_seconds, WorldStatus& world_status, int wake_fd,
             std::vector<Watched> peers)
    : rank_(rank),
      deadline_ns_(std::max<int64_t>(static_cast<int64_t>(deadline_seconds * 1e9), 1'000'000)),
      tick_ns_(std::min(kTickNs, deadline_ns_ / kTicksInDeadline)),
      world_status_(world_status),
      wake_fd_(wake_fd),
      epoll_fd_(make_epoll_fd()),
      events_(peers.size() + 1),
      next_tick_ns_(now_ns()),
      orders_(size) {
  add_to_epoll(wake_fd_, kWakeFd);
  for (Watched& watched : peers) {
    add_to_epoll(watched.control.fd(), peers_.size());
    const bool neighbour = is_neighbour(rank_, watched.rank, size);
    Peer& peer =
        peers_.emplace_back(Peer{.watched = std::move(watched), .neighbour = neighbour, .heard_ns = next_tick_ns_});
    follow_room(peer);
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

void Watch::add_to_epoll(int fd, uint64_t number) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = number}};
  if (::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw base::Error(base::Code::kUnavailable, std::string("a connection cannot be watched: ") + std::strerror(errno));
  }
}

void Watch::suspect(int rank, Sign sign) noexcept {
  orders_.suspected[static_cast<size_t>(rank)].store(static_cast<uint8_t>(sign), std::memory_order_release);
  orders_.any_suspected.store(true, std::memory_order_release);
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
    wait(next_tick_ns_);
    const int dead = orders_.dead.exchange(kNobody, std::memory_order_acquire);
    follow_orders();
    read_readable();
    handle_death(dead);
    follow_orders();  // a received frame may be a cause to spread
    if (now_ns() >= next_tick_ns_) {
      tick();
    }
  }
  follow_orders();
  // Channels that were closed meanwhile are marked as ended; that no longer counts as a loss.
  left_ = true;
  for (Peer& peer : peers_) {
    flush_and_read(peer);
  }
  follow_orders();
  flush_all(now_ns() + kLastWordsNs);
}

void Watch::wait(int64_t until_ns) {
  const int64_t left_ns = std::max<int64_t>(0, until_ns - now_ns());
  const int count = ::epoll_wait(epoll_fd_.get(), events_.data(), static_cast<int>(events_.size()),
                                 static_cast<int>((left_ns + 999'999) / 1'000'000));
  for (int i = 0; i < count; ++i) {
    if (const uint64_t number = events_[static_cast<size_t>(i)].data.u64; number != kWakeFd) {
      readable_.push_back(number);
      continue;
    }
    uint64_t wakes = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_fd_, &wakes, sizeof wakes);
  }
}

void Watch::follow_orders() {
  if (orders_.any_suspected.exchange(false, std::memory_order_acquire)) {
    note_suspects();
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

void Watch::note_suspects() {
  for (Peer& peer : peers_) {
    if (peer.suspect_ns == 0 &&
        orders_.suspected[static_cast<size_t>(peer.watched.rank)].load(std::memory_order_acquire) != 0) {
      peer.suspect_ns = now_ns();
    }
  }
}

void Watch::read_readable() {
  for (const size_t at : readable_) {
    flush_and_read(peers_[at]);
  }
  readable_.clear();
}

void Watch::flush_and_read(Peer& peer) {
  if (peer.ended) {
    return;
  }
  peer.watched.control.flush();
  follow_room(peer);
  while (const auto frame = peer.watched.control.receive()) {
    peer.heard_ns = now_ns();
    handle_frame(peer, *frame);
  }
  if (const auto sign = peer.watched.control.ended(); sign.has_value()) {
    end(peer, *sign);
  }
}

void Watch::end(Peer& peer, Sign sign) {
  peer.ended = true;
  ::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_DEL, peer.watched.control.fd(), nullptr);
  lose(peer, sign);
}

void Watch::follow_room(Peer& peer) noexcept {
  if (peer.awaits_room == peer.watched.control.has_unsent()) {
    return;
  }
  peer.awaits_room = !peer.awaits_room;
  epoll_event event{.events = EPOLLIN | (peer.awaits_room ? EPOLLOUT : 0U),
                    .data = {.u64 = static_cast<uint64_t>(&peer - peers_.data())}};
  ::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_MOD, peer.watched.control.fd(), &event);
}

// Its channel is read first: what it sent before it died, perhaps a cause or a goodbye, comes before its death.
void Watch::handle_death(int rank) {
  for (Peer& peer : peers_) {
    if (peer.watched.rank == rank) {
      flush_and_read(peer);
      if (!peer.ended) {
        end(peer, Sign::kClosed);
      }
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
      follow_room(peer);
    }
  }
}

// A tick that comes far too late: this machine or process was stopped, not the others. What they
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
      follow_room(peer);
    }
  }
}

bool Watch::all_sent() const {
  return std::none_of(peers_.begin(), peers_.end(),
                      [](const Peer& peer) { return !peer.ended && peer.watched.control.has_unsent(); });
}

void Watch::flush_all(int64_t until_ns) {
  while (!all_sent() && now_ns() < until_ns) {
    wait(until_ns);
    read_readable();
  }
}

}  // namespace farandole::transport
