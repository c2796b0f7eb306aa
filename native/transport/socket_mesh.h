// The mesh of workers in processes of their own: links in shared memory within a host, over TCP between hosts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/forming.h"
#include "transport/lifeline.h"
#include "transport/mesh.h"
#include "transport/prospect.h"
#include "transport/watch.h"

namespace farandole::transport {

// What a mesh leaves to its endpoint, which outlives it.
struct Legacy {
  bool mesh_lives = false;
  // Of workers that have our memory and may still be running in the ended generation.
  Acquaintances unsettled;
  std::vector<void*> rings;  // in the arena
};

class SocketMesh : public Mesh {
 public:
  SocketMesh(const EndpointSettings& settings, const World& world, Formed formed, Arena& arena,
             std::shared_ptr<Prospect> prospect, std::vector<std::string> ids, Legacy& legacy);
  ~SocketMesh() override;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return static_cast<int>(hosts_.size()); }
  uint64_t generation() const noexcept override { return prospect_->generation; }
  Link& link(int peer) override;
  Doorbell& doorbell() override { return prospect_->doorbell; }
  Fate& fate() override { return prospect_->fate; }
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

  void connect(int rank, Joined& joined);
  void keep_vigil();

  const int rank_;
  const std::vector<int> hosts_;
  Arena& arena_;
  const std::vector<std::string> ids_;  // by rank
  Legacy& legacy_;
  const std::shared_ptr<Prospect> prospect_;
  std::unique_ptr<Watch> watch_;  // none in a world of one
  std::vector<Peer> peers_;       // by rank; one's own is empty
  std::unique_ptr<Vigil> vigil_;  // none for who is alone on its host
};

}  // namespace farandole::transport
