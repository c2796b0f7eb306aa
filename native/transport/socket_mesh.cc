#include "transport/socket_mesh.h"

#include <algorithm>
#include <cassert>

#include "transport/shm_link.h"
#include "transport/tcp_link.h"

namespace farandole::transport {

SocketMesh::SocketMesh(const EndpointSettings& settings, const World& world, LinkedWorld formed, Arena& arena,
                       std::shared_ptr<PendingWorld> pending_world, std::vector<std::string> ids,
                       EndpointCarryOver& carry_over)
    : rank_(world.rank),
      hosts_(std::move(formed.hosts)),
      arena_(arena),
      ids_(std::move(ids)),
      carry_over_(carry_over),
      pending_world_(std::move(pending_world)),
      peers_(hosts_.size()) {
  std::vector<Watched> watched;
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != rank_) {
      LinkedPeer& joined = formed.peers[static_cast<size_t>(rank)];
      watched.push_back({.rank = rank, .control = std::move(joined.control), .left = joined.left});
    }
  }
  if (!watched.empty()) {
    watch_ = std::make_unique<Watch>(rank_, size(), settings.failure_deadline_seconds, world_status(),
                                     pending_world_->watch_fd.get(), std::move(watched));
  }
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != rank_) {
      connect(rank, formed.peers[static_cast<size_t>(rank)]);
    }
  }
  watch_next_peer();
  carry_over_.mesh_lives = true;
}

// The workers of a host watch each other in cyclic order, each the next one above it; the one that notices a death
// tells all. A death that is hidden behind another one is seen by the neighbour in the next world, or by the sockets.
void SocketMesh::watch_next_peer() {
  for (int distance = 1; distance < size(); ++distance) {
    const int next = (rank_ + distance) % size();
    if (const auto& memory = peers_[static_cast<size_t>(next)].memory; memory != nullptr) {
      death_watcher_ = std::make_unique<PeerDeathWatcher>(memory, [this, next] { watch_->report_death(next); });
      return;
    }
  }
}

void SocketMesh::connect(int rank, LinkedPeer& joined) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (joined.memory == nullptr) {
    peer.route = describe_connection(joined.data.get());
    peer.link = std::make_unique<TcpLink>(rank, std::move(joined.data), *watch_);
    return;
  }
  peer.route = "shared memory";
  peer.memory = std::move(joined.memory);
  peer.doorbell_fd = std::move(joined.doorbell);
  peer.doorbell = std::make_unique<Doorbell>(&peer.memory->view().header().sleeping, peer.doorbell_fd.get());
  peer.link = std::make_unique<ShmLink>(rank, *joined.outgoing, *joined.incoming, *peer.doorbell, world_status());
}

// The control channels go first: they say why, and the ends of the data connections are judged by that.
SocketMesh::~SocketMesh() {
  carry_over_.mesh_lives = false;
  death_watcher_.reset();
  if (watch_ == nullptr) {
    return;
  }
  const auto cause = pending_world_->world_status.cause();
  for (const int rank : watch_->stop()) {
    const bool dead = cause.has_value() && cause->sign == Sign::kClosed && cause->rank == rank;
    if (const auto& memory = peers_[static_cast<size_t>(rank)].memory; !dead && memory != nullptr) {
      carry_over_.possible_writers[ids_[static_cast<size_t>(rank)]] = memory;
    }
  }
}

Link& SocketMesh::link(int peer) {
  assert(peer != rank_);
  return *peers_[static_cast<size_t>(peer)].link;
}

const ArenaView* SocketMesh::arena(int peer) const noexcept {
  if (peer == rank_) {
    return &arena_.view();
  }
  const auto& memory = peers_[static_cast<size_t>(peer)].memory;
  return memory == nullptr ? nullptr : &memory->view();
}

void SocketMesh::wake(int peer) noexcept {
  if (peer == rank_) {
    pending_world_->doorbell.signal_midway();
  } else if (Doorbell* const doorbell = peers_[static_cast<size_t>(peer)].doorbell.get(); doorbell != nullptr) {
    doorbell->signal_midway();
  }
}

void SocketMesh::part() noexcept {
  if (watch_ != nullptr) {
    watch_->part();
  }
}

std::string SocketMesh::describe() const {
  const auto is_shm = [](const Peer& peer) { return peer.memory != nullptr; };
  const auto is_tcp = [](const Peer& peer) { return peer.memory == nullptr && peer.link != nullptr; };
  const bool shm = std::any_of(peers_.begin(), peers_.end(), is_shm);
  const bool tcp = std::any_of(peers_.begin(), peers_.end(), is_tcp);
  if (shm && tcp) {
    return "shm+tcp";
  }
  return shm ? "shm" : tcp ? "tcp" : "alone";
}

}  // namespace farandole::transport
