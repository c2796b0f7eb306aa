#include "transport/socket_mesh.h"

#include <algorithm>
#include <cassert>

namespace farandole::transport {
namespace {

constexpr size_t at(int rank) { return static_cast<size_t>(rank); }

}  // namespace

SocketMesh::SocketMesh(const EndpointSettings& settings, const World& world, LinkedWorld linked, Arena& arena,
                       std::shared_ptr<PendingWorld> pending_world, std::vector<std::string> ids,
                       EndpointCarryOver& carry_over)
    : rank_(world.rank),
      hosts_(std::move(linked.hosts)),
      arena_(arena),
      ids_(std::move(ids)),
      carry_over_(carry_over),
      pending_world_(std::move(pending_world)),
      peers_(hosts_.size()) {
  std::vector<Watched> watched;
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != rank_) {
      LinkedPeer& peer = linked.peers[at(rank)];
      watched.push_back({.rank = rank, .control = std::move(peer.control), .left = linked.left[at(rank)]});
    }
  }
  if (!watched.empty()) {
    watch_ = std::make_unique<Watch>(rank_, size(), settings.failure_deadline_seconds, world_status(),
                                     pending_world_->watch_fd.get(), std::move(watched));
  }
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != rank_) {
      peers_[at(rank)] = linked.peers[at(rank)].link->finish(rank, *watch_, world_status());
    }
  }
  watch_next_peer();
  carry_over_.mesh_lives = true;
}

// The workers of a host watch each other in cyclic order, each the next one above it; the one that notices a death
// tells all. A death that is hidden by another one is noticed by the neighbour in the next world, or by the sockets.
void SocketMesh::watch_next_peer() {
  for (int distance = 1; distance < size(); ++distance) {
    const int next = (rank_ + distance) % size();
    if (const auto& memory = peers_[at(next)].memory; memory != nullptr) {
      death_watcher_ = std::make_unique<PeerDeathWatcher>(memory, [this, next] { watch_->report_death(next); });
      return;
    }
  }
}

// The control channels close first: they give the reason, by which the ends of the data connections are judged.
SocketMesh::~SocketMesh() {
  carry_over_.mesh_lives = false;
  death_watcher_.reset();
  if (watch_ == nullptr) {
    return;
  }
  const auto cause = pending_world_->world_status.cause();
  for (const int rank : watch_->stop()) {
    const bool dead = cause.has_value() && cause->sign == Sign::kClosed && cause->rank == rank;
    if (const auto& memory = peers_[at(rank)].memory; !dead && memory != nullptr) {
      carry_over_.possible_writers[ids_[at(rank)]] = memory;
    }
  }
}

Link& SocketMesh::link(int peer) {
  assert(peer != rank_);
  return *peers_[at(peer)].link;
}

const ArenaView* SocketMesh::arena(int peer) const noexcept {
  if (peer == rank_) {
    return &arena_.view();
  }
  const auto& memory = peers_[at(peer)].memory;
  return memory == nullptr ? nullptr : &memory->view();
}

void SocketMesh::wake(int peer) noexcept {
  if (peer == rank_) {
    pending_world_->doorbell.signal_midway();
  } else if (Doorbell* const doorbell = peers_[at(peer)].doorbell.get(); doorbell != nullptr) {
    doorbell->signal_midway();
  }
}

void SocketMesh::say_goodbye() noexcept {
  if (watch_ != nullptr) {
    watch_->say_goodbye();
  }
}

// The kinds that are in use, in the order of the table.
std::string SocketMesh::describe() const {
  std::string kinds;
  for (const LinkKind& kind : link_kinds()) {
    if (std::ranges::any_of(peers_, [&](const PeerLink& peer) { return peer.kind == kind.name; })) {
      kinds += (kinds.empty() ? "" : "+") + std::string(kind.name);
    }
  }
  return kinds.empty() ? "alone" : kinds;
}

}  // namespace farandole::transport
