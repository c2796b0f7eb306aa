// The mesh of workers in processes of their own, with a link of the kind that fits to each other one (link_kind.h). In
// larger worlds, most links are made late (late_links.h).
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "transport/carry_over.h"
#include "transport/late_links.h"
#include "transport/lifeline.h"
#include "transport/link_kind.h"
#include "transport/mesh.h"
#include "transport/mesh_setup.h"
#include "transport/pending_world.h"
#include "transport/watch.h"

namespace farandole::transport {

class SocketMesh : public Mesh {
 public:
  // `patience_seconds`: how long a late link may take.
  SocketMesh(const LinkContext& context, const World& world, LinkedWorld linked,
             std::shared_ptr<PendingWorld> pending_world, std::vector<std::string> ids, EndpointCarryOver& carry_over,
             double patience_seconds);
  ~SocketMesh() override;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return static_cast<int>(hosts_.size()); }
  uint64_t generation() const noexcept override { return pending_world_->generation; }
  Link& link(int peer) override;
  bool is_late(int peer) const noexcept override { return peers_[static_cast<size_t>(peer)].link == nullptr; }
  std::vector<int> take_late() override;
  Doorbell& doorbell() override { return pending_world_->doorbell; }
  WorldStatus& world_status() override { return pending_world_->world_status; }
  const ArenaView* arena(int peer) const noexcept override;
  void wake(int peer, Sleep what_for) noexcept override;
  const std::vector<int>& hosts() const noexcept override { return hosts_; }
  void say_goodbye() noexcept override;
  std::string describe() const override;
  std::string describe_route(int peer) const override;

 private:
  // A late link: the mesh's part of it, which is there before it is made.
  struct Late {
    LateLink link;
    std::string route;  // empty: it is not made yet
  };

  void watch_next_peer();
  Late& late(int peer) REQUIRES(mutex_);
  void take(int peer, LinkedPeer linked);

  const int rank_;
  const std::vector<int> hosts_;
  Arena& arena_;
  const std::vector<std::string> ids_;  // by rank
  EndpointCarryOver& carry_over_;
  const std::shared_ptr<PendingWorld> pending_world_;
  std::unique_ptr<Watch> watch_;                     // none in a world of one
  std::vector<PeerLink> peers_;                      // by rank; one's own and late ones are empty
  std::unique_ptr<PeerDeathWatcher> death_watcher_;  // none for a worker that is alone on its host

  mutable base::Mutex mutex_;
  std::map<int, std::unique_ptr<Late>> late_ GUARDED_BY(mutex_);  // by rank: those that are made or wanted
  std::vector<int> made_ GUARDED_BY(mutex_);                      // since the last take_late()
  std::atomic<bool> any_made_{false};
  std::unique_ptr<LateLinks> late_links_;  // last: its thread uses the others. None where all are linked from the start
};

}  // namespace farandole::transport
