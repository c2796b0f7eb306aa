#include "transport/socket_mesh.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace farandole::transport {
namespace {

constexpr size_t at(int rank) { return static_cast<size_t>(rank); }

}  // namespace

SocketMesh::SocketMesh(const LinkContext& context, const World& world, LinkedWorld linked,
                       std::shared_ptr<PendingWorld> pending_world, std::vector<std::string> ids,
                       EndpointCarryOver& carry_over, double patience_seconds)
    : rank_(world.rank),
      hosts_(std::move(linked.hosts)),
      arena_(context.arena),
      ids_(std::move(ids)),
      carry_over_(carry_over),
      pending_world_(std::move(pending_world)),
      peers_(hosts_.size()) {
  std::vector<Watched> watched;
  for (LinkedWorld::Peer& peer : linked.peers) {
    watched.push_back({.rank = peer.rank, .control = std::move(peer.linked.control), .left = peer.left});
  }
  if (!watched.empty()) {
    watch_ = std::make_unique<Watch>(rank_, size(), context.failure_deadline_seconds, world_status(),
                                     pending_world_->watch_fd.get(), std::move(watched));
  }
  for (LinkedWorld::Peer& peer : linked.peers) {
    peers_[at(peer.rank)] = peer.linked.link->finish(peer.rank, *watch_, world_status());
  }
  watch_next_peer();
  if (linked.peers.size() + 1 < hosts_.size()) {
    late_links_ =
        std::make_unique<LateLinks>(context, std::move(linked.connections), patience_seconds, world_status(),
                                    [this](int peer, LinkedPeer linked_peer) { take(peer, std::move(linked_peer)); });
  }
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
  late_links_.reset();
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
  if (!is_late(peer)) {
    return *peers_[at(peer)].link;
  }
  const base::MutexLock lock(mutex_);
  if (!late_.contains(peer) && peer < rank_) {
    late_links_->want(peer);
  }
  return late(peer).link;
}

SocketMesh::Late& SocketMesh::late(int peer) {
  std::unique_ptr<Late>& late = late_[peer];
  if (late == nullptr) {
    late = std::make_unique<Late>();
  }
  return *late;
}

std::vector<int> SocketMesh::take_late() {
  if (!any_made_.load(std::memory_order_acquire)) {
    return {};
  }
  const base::MutexLock lock(mutex_);
  any_made_.store(false, std::memory_order_relaxed);
  return std::exchange(made_, {});
}

// The thread of the late links.
void SocketMesh::take(int peer, LinkedPeer linked) {
  {
    const base::MutexLock lock(mutex_);
    Late& taken = late(peer);
    if (!taken.route.empty()) {
      return;  // it is in use already
    }
    PeerLink made = linked.link->finish(peer, *watch_, world_status());
    watch_->add(peer, std::move(linked.control));
    taken.route = std::move(made.route);
    taken.link.take(std::move(made.link));
    made_.push_back(peer);
    any_made_.store(true, std::memory_order_release);
  }
  doorbell().signal();
}

std::string SocketMesh::describe_route(int peer) const {
  if (!is_late(peer)) {
    return peers_[at(peer)].route;
  }
  const base::MutexLock lock(mutex_);
  const auto late = late_.find(peer);
  return late == late_.end() || late->second->route.empty() ? "not connected yet" : late->second->route;
}

const ArenaView* SocketMesh::arena(int peer) const noexcept {
  if (peer == rank_) {
    return &arena_.view();
  }
  const auto& memory = peers_[at(peer)].memory;
  return memory == nullptr ? nullptr : &memory->view();
}

void SocketMesh::wake(int peer, Sleep what_for) noexcept {
  if (Doorbell* const doorbell = peers_[at(peer)].doorbell.get(); doorbell != nullptr) {
    doorbell->signal(what_for, rank_);
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
