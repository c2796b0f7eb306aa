#include "transport/watch.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "transport/event_fd.h"

namespace farandole::transport {
namespace {

using base::now_ns;

// How long the last frames may take to leave when the world is taken down.
constexpr int64_t kLastWordsNs = 100'000'000;
// The number of the eventfd that wakes the watch thread, for epoll; channels have the ranks of their peers.
constexpr uint64_t kWakeFd = UINT64_MAX;

PrivateFd make_epoll_fd() {
  const ForkHold hold;
  PrivateFd fd(::epoll_create1(EPOLL_CLOEXEC), hold);
  if (!fd) {
    throw base::Error(base::Code::kUnavailable, std::string("no epoll instance can be made: ") + std::strerror(errno) +
                                                    "; raise the limit of open files (ulimit -n)");
  }
  return fd;
}

std::vector<int> ranks_of(const std::vector<Watched>& peers) {
  std::vector<int> ranks;
  for (const Watched& peer : peers) {
    ranks.push_back(peer.rank);
  }
  return ranks;
}

}  // namespace

Watch::Watch(int rank, int size, double deadline_seconds, WorldStatus& world_status, int wake_fd,
             std::vector<Watched> peers)
    : world_status_(world_status),
      wake_fd_(wake_fd),
      core_(rank, size, ranks_of(peers), deadline_seconds, now_ns()),
      epoll_fd_(make_epoll_fd()),
      events_(peers.size() + 1),
      orders_(size) {
  add_to_epoll(wake_fd_, kWakeFd);
  for (Watched& watched : peers) {
    watch(watched.rank, std::move(watched.control));
    if (watched.left) {
      core_.receive(watched.rank, ControlFrame(ControlKind::kGoodbye), now_ns());
    }
  }
  thread_ = base::start_thread("farandole-watch", [this] { run(); });
}

Watch::~Watch() { stop(); }

Watch::Peer& Watch::watch(int rank, ControlChannel control) {
  add_to_epoll(control.fd(), static_cast<uint64_t>(rank));
  Peer& peer = peers_[rank];
  peer.rank = rank;
  peer.control = std::move(control);
  follow_room(peer);
  return peer;
}

void Watch::add(int rank, ControlChannel control) {
  {
    const base::MutexLock lock(mutex_);
    added_.push_back({.rank = rank, .control = std::move(control)});
  }
  orders_.any_added.store(true, std::memory_order_release);
  wake();
}

// What all others have been told already is told these, too.
void Watch::take_added() {
  std::vector<Watched> added;
  {
    const base::MutexLock lock(mutex_);
    added.swap(added_);
  }
  for (Watched& watched : added) {
    Peer& peer = watch(watched.rank, std::move(watched.control));
    events_.resize(peers_.size() + 1);
    core_.add(peer.rank);
    if (core_.has_left()) {
      peer.control.send(ControlFrame(ControlKind::kGoodbye));
    } else if (core_.is_over()) {
      peer.control.send(revoke_frame(*world_status_.cause()));
    }
    follow_room(peer);
  }
}

std::vector<int> Watch::stop() noexcept {
  if (thread_.joinable()) {
    orders_.stop.store(true, std::memory_order_release);
    wake();
    thread_.join();
  }
  return core_.running();
}

void Watch::say_goodbye() noexcept {
  orders_.leave.store(true, std::memory_order_release);
  wake();
  const base::MutexLock lock(mutex_);
  goodbye_changed_.wait_for(mutex_, std::chrono::nanoseconds(core_.deadline_ns()), [this] {
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

void Watch::wake() noexcept { signal_event(wake_fd_); }

void Watch::run() {
  while (!orders_.stop.load(std::memory_order_acquire)) {
    wait(core_.next_tick_ns());
    const int dead = orders_.dead.exchange(kNobody, std::memory_order_acquire);
    follow_orders();
    read_readable();
    handle_death(dead);
    follow_orders();  // a received frame may be a cause to spread
    if (now_ns() >= core_.next_tick_ns()) {
      tick();
    }
  }
  follow_orders();
  // Channels that were closed meanwhile are marked as ended; that no longer counts as a loss.
  core_.stop_judging();
  for (auto& [rank, peer] : peers_) {
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
      readable_.push_back(static_cast<int>(number));
      continue;
    }
    drain_event(wake_fd_);
  }
}

void Watch::follow_orders() {
  if (orders_.any_added.exchange(false, std::memory_order_acquire)) {
    take_added();
  }
  if (orders_.any_suspected.exchange(false, std::memory_order_acquire)) {
    note_suspects();
  }
  if (!core_.is_over() && world_status_.revoked()) {
    send(core_.spread(*world_status_.cause()));
  }
  if (orders_.leave.load(std::memory_order_acquire)) {
    send(core_.leave());
  }
  if (core_.has_left() && all_sent()) {
    const base::MutexLock lock(mutex_);
    said_goodbye_ = true;
    goodbye_changed_.notify_all();
  }
}

void Watch::note_suspects() {
  for (const auto& [rank, peer] : peers_) {
    const uint8_t sign = orders_.suspected[static_cast<size_t>(rank)].load(std::memory_order_acquire);
    if (sign != 0) {
      core_.suspect(rank, static_cast<Sign>(sign), now_ns());
    }
  }
}

void Watch::read_readable() {
  for (const int rank : readable_) {
    flush_and_read(peers_.at(rank));
  }
  readable_.clear();
}

void Watch::flush_and_read(Peer& peer) {
  if (core_.has_ended(peer.rank)) {
    return;
  }
  peer.control.flush();
  follow_room(peer);
  while (const auto frame = peer.control.receive()) {
    revoke(core_.receive(peer.rank, *frame, now_ns()));
  }
  if (const auto sign = peer.control.ended(); sign.has_value()) {
    end(peer, *sign);
  }
}

void Watch::forget(Peer& peer) noexcept { ::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_DEL, peer.control.fd(), nullptr); }

void Watch::end(Peer& peer, Sign sign) {
  forget(peer);
  revoke(core_.end(peer.rank, sign, now_ns()));
}

void Watch::revoke(std::optional<Cause> cause) {
  if (cause.has_value()) {
    world_status_.revoke(*std::move(cause));
  }
}

void Watch::follow_room(Peer& peer) noexcept {
  if (peer.awaits_room == peer.control.has_unsent()) {
    return;
  }
  peer.awaits_room = !peer.awaits_room;
  epoll_event event{.events = EPOLLIN | (peer.awaits_room ? EPOLLOUT : 0U),
                    .data = {.u64 = static_cast<uint64_t>(peer.rank)}};
  ::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_MOD, peer.control.fd(), &event);
}

// Its channel is read first: what it sent before it died, perhaps a cause or a goodbye, comes before its death.
void Watch::handle_death(int rank) {
  if (rank == kNobody) {
    return;
  }
  Peer& peer = peers_.at(rank);
  flush_and_read(peer);
  if (!core_.has_ended(rank)) {
    forget(peer);
  }
  revoke(core_.die(rank, now_ns()));
}

void Watch::tick() {
  const WatchCore::Tick tick = core_.tick(now_ns());
  revoke(tick.cause);
  for (const int rank : tick.beats) {
    // Frames that are still unsent will show the peer that this worker lives, as a heartbeat would.
    if (Peer& peer = peers_.at(rank); !peer.control.has_unsent()) {
      peer.control.send(ControlFrame(ControlKind::kHeartbeat));
      follow_room(peer);
    }
  }
}

void Watch::send(const std::optional<WatchCore::Outgoing>& outgoing) {
  if (!outgoing.has_value()) {
    return;
  }
  for (const int rank : outgoing->to) {
    Peer& peer = peers_.at(rank);
    peer.control.send(outgoing->frame);
    follow_room(peer);
  }
}

bool Watch::all_sent() const {
  return std::ranges::none_of(peers_, [this](const auto& entry) {
    const auto& [rank, peer] = entry;
    return !core_.has_ended(rank) && peer.control.has_unsent();
  });
}

void Watch::flush_all(int64_t until_ns) {
  while (!all_sent() && now_ns() < until_ns) {
    wait(until_ns);
    read_readable();
  }
}

}  // namespace farandole::transport
