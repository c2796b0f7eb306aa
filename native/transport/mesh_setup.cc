#include "transport/mesh_setup.h"

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/error.h"

namespace farandole::transport {
namespace {

using base::Error;

// Most worlds have formed before this, and do not need a thread.
constexpr double kDeathWatchAfterSeconds = 0.02;

// The last moments before the deadline: a tenth of the whole time, and no more than the upper bound.
constexpr int64_t kPartOfLastMoments = 10;
constexpr int64_t kMostLastMomentsNs = 500'000'000;

constexpr int64_t kLongestWaitMs = 60'000;

}  // namespace

MeshSetup::MeshSetup(const SetupContext& context, const World& world, const std::vector<Contact>& contacts,
                     const base::Deadline& deadline)
    : context_(context),
      rank_(world.rank),
      deadline_(deadline),
      last_moments_ns_(std::min(deadline.left_ns() / kPartOfLastMoments, kMostLastMomentsNs)),
      hosts_(hosts_of(contacts)),
      connections_(std::make_unique<Connections>(context_.listeners, world, contacts)),
      core_(world.rank, world.generation, hosts_),
      death_watch_start_(base::Deadline::after_seconds(kDeathWatchAfterSeconds)) {
  for (const int rank : core_.peers()) {
    peers_[rank].rank = rank;
    if (rank < rank_) {
      connections_->dial(rank, deadline_);
    }
  }
}

LinkedWorld MeshSetup::run() {
  const WorldStatus& world_status = context_.pending_world.world_status;
  try {
    world_status.throw_if_revoked();
    send_outgoing();
    while (!complete()) {
      if (left_ns() == 0) {
        throw core_.timeout();
      }
      watch_next_peer();
      wait();
      // A worker that has just been proven joins before any loss is found, and so learns of that loss, too.
      settle();
      read_controls();
      handle_deaths();
      world_status.throw_if_revoked();
      send_outgoing();
    }
    return finish();
  } catch (const Error& error) {
    send_failure(error);
    throw;
  }
}

bool MeshSetup::complete() const {
  return core_.has_formed() &&
         std::ranges::none_of(peers_, [](const auto& entry) { return entry.second.linked.control.has_unsent(); });
}

// Until this worker gives up. Those that know which rank is missing do so first, and tell the others, which would blame
// ranks that wait like themselves.
int64_t MeshSetup::left_ns() const {
  const double after = 1 - core_.give_up_part();
  return std::max<int64_t>(0,
                           deadline_.left_ns() - static_cast<int64_t>(after * static_cast<double>(last_moments_ns_)));
}

// Waits for the next event, then moves what is not yet proven.
void MeshSetup::wait() {
  std::vector<pollfd> polled;
  connections_->prepare_wait(polled);
  const size_t first_peer = polled.size();
  for (const auto& [rank, peer] : peers_) {
    const short events = peer.linked.control.has_unsent() ? POLLIN | POLLOUT : POLLIN;
    polled.push_back({.fd = peer.is_gone() ? -1 : peer.linked.control.fd(), .events = events, .revents = 0});
  }
  polled.push_back({.fd = context_.pending_world.watch_fd.get(), .events = POLLIN, .revents = 0});
  if (::poll(polled.data(), polled.size(), timeout_ms()) <= 0) {
    return;
  }
  size_t at = first_peer;
  for (auto& [rank, peer] : peers_) {
    peer.readable = polled[at++].revents != 0;
  }
  if (polled[at].revents != 0) {
    context_.pending_world.drain();
  }
  connections_->finish_wait(polled);
}

int MeshSetup::timeout_ms() const {
  int64_t wait_ns = std::min(left_ns(), connections_->left_ns());
  if (!death_watch_start_.passed()) {
    wait_ns = std::min(wait_ns, death_watch_start_.left_ns());
  }
  return static_cast<int>(std::min<int64_t>((wait_ns + 999'999) / 1'000'000, kLongestWaitMs));
}

void MeshSetup::read_controls() {
  for (auto& [rank, peer] : peers_) {
    if (std::exchange(peer.readable, false)) {
      peer.linked.control.flush();
      read(peer);
    }
  }
}

// Watches the next worker of this host above this one in cyclic order, as in a world that has formed, among those whose
// memory is mapped by now. The other workers are watched by others, which tell all.
void MeshSetup::watch_next_peer() {
  if (!death_watch_start_.passed()) {
    return;
  }
  const auto watch = [this](const Peer& next) {
    const auto memory = next.linked.link == nullptr ? nullptr : next.linked.link->memory();
    if (memory != nullptr && memory.get() != watched_memory_) {
      watched_memory_ = memory.get();
      death_watcher_ = std::make_unique<PeerDeathWatcher>(memory, [this] { context_.pending_world.wake(); });
    }
    return memory != nullptr;
  };
  const auto above = peers_.upper_bound(rank_);
  const auto watch_entry = [&](const auto& entry) { return watch(entry.second); };
  std::any_of(above, peers_.end(), watch_entry) || std::any_of(peers_.begin(), above, watch_entry);
}

// Its channel is read first: what it sent before it died, perhaps a cause or a goodbye, may have come since poll(2).
void MeshSetup::handle_deaths() {
  for (auto& [rank, peer] : peers_) {
    const auto memory = peer.linked.link == nullptr ? nullptr : peer.linked.link->memory();
    if (memory != nullptr && has_died(memory->view())) {
      read(peer);
      obey(core_.die(peer.rank));
    }
  }
}

void MeshSetup::settle() {
  connections_->settle({.wants = [this](int rank) { return core_.is_peer(rank); },
                        .proven =
                            [this](Connections::Proven connection) {
                              if (connection.channel == Channel::kControl) {
                                join_control(std::move(connection));
                              } else {
                                join_data(peers_.at(connection.peer), std::move(connection.fd));
                              }
                            },
                        .refused =
                            [this](int rank, Refusal refusal) {
                              if (core_.is_peer(rank)) {
                                core_.refuse(rank, refusal);
                              }
                            }});
}

// A later connection replaces an earlier one: the other side makes one only when the earlier failed for it.
void MeshSetup::join_control(Connections::Proven connection) {
  Peer& peer = peers_.at(connection.peer);
  const bool connector = connection.connector;
  peer.linked = LinkedPeer{};
  peer.readable = false;
  peer.linked = connections_->begin_link(context_.links, std::move(connection), deadline_);
  core_.join(peer.rank, connector, peer.linked.shares_memory);
}

// A data connection without a control connection: the control connection has ended since.
void MeshSetup::join_data(Peer& peer, PrivateFd fd) {
  if (peer.linked.link != nullptr && peer.linked.link->wants_data_connection()) {
    peer.linked.link->take_data_connection(std::move(fd));
    core_.prove(peer.rank);
    core_.link(peer.rank);
  }
}

void MeshSetup::read(Peer& peer) {
  if (!finish_exchange(peer)) {
    return;
  }
  while (const auto frame = peer.linked.control.receive()) {
    obey(core_.receive(peer.rank, *frame));
  }
  if (const auto sign = peer.linked.control.ended(); sign.has_value()) {
    handle_end(peer, *sign);
  }
}

// The kind's own exchange comes before any control frame. Returns true if there is none, or it is over.
bool MeshSetup::finish_exchange(Peer& peer) {
  if (peer.linked.link == nullptr || !peer.linked.link->exchanging()) {
    return true;
  }
  switch (peer.linked.link->advance(peer.linked.control.fd())) {
    case Exchange::kNotYet:
      return false;
    case Exchange::kClosed:
      handle_end(peer, Sign::kClosed);
      return false;
    case Exchange::kBroken:
      core_.prove(peer.rank);  // only a worker with the job's secret sends an exchange that could be broken
      handle_end(peer, Sign::kBroken);
      return false;
    case Exchange::kDone:
      core_.prove(peer.rank);
      core_.link(peer.rank);
  }
  return true;
}

void MeshSetup::handle_end(Peer& peer, Sign sign) {
  obey(core_.end(peer.rank, sign));
  if (!core_.keeps(peer.rank)) {
    peer.linked = LinkedPeer{};
  }
}

void MeshSetup::send_outgoing() {
  while (const auto outgoing = core_.take_outgoing()) {
    for (const int rank : outgoing->to) {
      peers_.at(rank).linked.control.send(outgoing->frame);
    }
  }
}

LinkedWorld MeshSetup::finish() {
  LinkedWorld world{.peers = {}, .hosts = core_.hosts(), .connections = std::move(connections_)};
  for (auto& [rank, peer] : peers_) {
    world.peers.push_back({.rank = rank, .linked = std::move(peer.linked), .left = core_.has_left(rank)});
  }
  return world;
}

void MeshSetup::obey(std::optional<Cause> cause) {
  if (cause.has_value()) {
    context_.pending_world.world_status.revoke(*std::move(cause));
    throw context_.pending_world.world_status.error();
  }
}

// Best effort: the frames are small, and these sockets have carried very little.
void MeshSetup::send_failure(const Error& error) {
  ControlFrame frame(ControlKind::kAbandon, error.what());
  frame.rank = error.lost_rank();
  if (const auto cause = context_.pending_world.world_status.cause(); cause.has_value()) {
    frame = revoke_frame(*cause);
  }
  for (auto& [rank, peer] : peers_) {
    if (peer.linked.control && !peer.is_gone()) {
      peer.linked.control.send(frame);
    }
  }
}

}  // namespace farandole::transport
