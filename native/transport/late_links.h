// The links that are made when they are needed first: in larger worlds, most pairs of workers never exchange anything,
// so only some have a link from the start (start_graph.h).
//
// A late link is made by a thread of its own, so that neither the engine nor the watch waits for it. As at the start,
// the higher rank of a pair connects; the lower one accepts at any time. Until both sides have it, what is sent waits,
// and nothing has come. All use of a link has two sides: where one of them sends, the other one receives in the same
// collective, or reports to it. So the higher rank of a pair needs the link, too, and connects.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "transport/connections.h"
#include "transport/link.h"
#include "transport/link_kind.h"
#include "transport/private_fd.h"
#include "transport/world_status.h"

namespace farandole::transport {

// In the place of a link that is not made yet.
class LateLink final : public Link {
 public:
  // Any thread, once.
  void take(std::unique_ptr<Link> link) noexcept {
    owned_ = std::move(link);
    link_.store(owned_.get(), std::memory_order_release);
  }

  size_t try_send(std::span<const std::byte> bytes) override { return is_made() ? owned_->try_send(bytes) : 0; }
  size_t try_recv(std::span<std::byte> bytes) override { return is_made() ? owned_->try_recv(bytes) : 0; }
  size_t try_send_both(std::span<const std::byte> first, std::span<const std::byte> second) override {
    return is_made() ? owned_->try_send_both(first, second) : 0;
  }
  int poll_fd() const noexcept override { return is_made() ? owned_->poll_fd() : -1; }

 private:
  bool is_made() const noexcept { return link_.load(std::memory_order_acquire) != nullptr; }

  std::unique_ptr<Link> owned_;
  std::atomic<Link*> link_{nullptr};
};

class LateLinks {
 public:
  // Called by the thread of this object for each link that has been made.
  using Made = std::function<void(int peer, LinkedPeer linked)>;

  // A link that cannot be made within `patience_seconds` ends the world. All references outlive this object.
  LateLinks(const LinkContext& context, std::unique_ptr<Connections> connections, double patience_seconds,
            WorldStatus& world_status, Made made);
  ~LateLinks();
  LateLinks(const LateLinks&) = delete;
  LateLinks& operator=(const LateLinks&) = delete;

  // A link to this lower rank is needed. Any thread.
  void want(int peer) noexcept;

 private:
  struct Making {
    base::Deadline deadline;
    LinkedPeer linked{};  // empty until the control connection is proven
    Refusal refusal = Refusal::kNone;
  };

  void run();
  void dial_wanted();
  void wait();
  void settle();
  void begin(Connections::Proven control);
  void finish(int peer, PrivateFd data);
  void give_up_late();
  void wake() noexcept;
  int timeout_ms() const;

  MemoryHolders nobody_;  // such links share no memory
  const LinkContext context_;
  const double patience_seconds_;
  WorldStatus& world_status_;
  const Made made_;
  const PrivateFd wake_fd_;

  // The thread only.
  std::unique_ptr<Connections> connections_;
  std::map<int, Making> makings_;  // by rank

  std::atomic<bool> stop_{false};
  base::Mutex mutex_;
  std::vector<int> wanted_ GUARDED_BY(mutex_);

  std::thread thread_;  // last: it starts when all else is there
};

}  // namespace farandole::transport
