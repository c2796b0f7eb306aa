// The mesh of workers in processes of their own: links in shared memory within a host, over TCP between hosts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/lifeline.h"
#include "transport/mesh.h"
#include "transport/mesh_setup.h"
#include "transport/pending_world.h"
#include "transport/watch.h"

namespace farandole::transport {

// What a mesh leaves to its endpoint, which outlives it.
struct EndpointCarryOver {
  bool mesh_lives = false;
  // Of workers that have our memory and may still be running in the ended generation.
  MemoryHolders possible_writers;
  std::vector<void*> ring_buffers;  // in the arena
};

class SocketMesh : public Mesh {
 public:
  SocketMesh(const EndpointSettings& settings, const World& world, LinkedWorld formed, Arena& arena,
             std::shared_ptr<PendingWorld> pending_world, std::vector<std::string> ids, EndpointCarryOver& carry_over);
  ~SocketMesh() override;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return static_cast<int>(hosts_.size()); }
  uint64_t generation() const noexcept override { return pending_world_->generation; }
  Link& link(int peer) override;
  Doorbell& doorbell() override { return pending_world_->doorbell; }
  WorldStatus& world_status() override { return pending_world_->world_status; }
  const ArenaView* arena(int peer) const noexcept override;
  void wake(int peer) noexcept override;
  const std::vector<int>& hosts() const noexcept override { return hosts_; }
  void part() noexcept override;
  std::string describe() const override;
  std::string describe_route(int peer) const override { return peers_[static_cast<size_t>(peer)].route; }

 private:
  struct Peer {
    std::shared_ptr<const Mapping> memory;
    PrivateFd doorbell_fd;
    std::unique_ptr<Doorbell> doorbell;
    std::unique_ptr<Link> link;
    std::string route;  // see describe_route
  };

  void connect(int rank, LinkedPeer& joined);
  void watch_next_peer();

  const int rank_;
  const std::vector<int> hosts_;
  Arena& arena_;
  const std::vector<std::string> ids_;  // by rank
  EndpointCarryOver& carry_over_;
  const std::shared_ptr<PendingWorld> pending_world_;
  std::unique_ptr<Watch> watch_;                     // none in a world of one
  std::vector<Peer> peers_;                          // by rank; one's own is empty
  std::unique_ptr<PeerDeathWatcher> death_watcher_;  // none for who is alone on its host
};

}  // namespace farandole::transport
