// The mesh of workers in processes of their own, with a link of the kind that fits to each other one (link_kind.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/carry_over.h"
#include "transport/lifeline.h"
#include "transport/link_kind.h"
#include "transport/mesh.h"
#include "transport/mesh_setup.h"
#include "transport/pending_world.h"
#include "transport/watch.h"

namespace farandole::transport {

class SocketMesh : public Mesh {
 public:
  SocketMesh(const EndpointSettings& settings, const World& world, LinkedWorld linked, Arena& arena,
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
  void say_goodbye() noexcept override;
  std::string describe() const override;
  std::string describe_route(int peer) const override { return peers_[static_cast<size_t>(peer)].route; }

 private:
  void watch_next_peer();

  const int rank_;
  const std::vector<int> hosts_;
  Arena& arena_;
  const std::vector<std::string> ids_;  // by rank
  EndpointCarryOver& carry_over_;
  const std::shared_ptr<PendingWorld> pending_world_;
  std::unique_ptr<Watch> watch_;                     // none in a world of one
  std::vector<PeerLink> peers_;                      // by rank; one's own is empty
  std::unique_ptr<PeerDeathWatcher> death_watcher_;  // none for a worker that is alone on its host
};

}  // namespace farandole::transport
