// The watch thread of one mesh: it detects that a worker is lost, and makes sure that every worker of the world
// learns of it, in milliseconds and in the same words.
//
// It owns the control channels of the mesh. It takes no lock of another thread, so it works while the engine computes
// and while the framework holds its own locks.
//
//  - A control channel that closes without a goodbye: that worker's process has ended. Certain, acts at once.
//  - A worker of this host whose lifeline broke (see lifeline.h): the same, sooner. A moment later where that worker
//    does not tell this one why its world has ended (see revocation_graph.h), because it may have ended for that
//    reason.
//  - A neighbour (rank +-1, +-2, cyclically) that sent no heartbeat for the failure deadline: silent. The other
//    channels are idle but for the kernel's keepalive probes, which end them when the other host does not answer.
//  - The first cause, wherever it comes from, is passed on once, unchanged: in small worlds to all, in larger ones to
//    a few, so that all hear of it within a few steps (see revocation_graph.h). Channels are read in order, and a
//    worker that ends its world sends the cause before it closes; a worker does not judge the closing of another one
//    that tells it nothing. So a survivor that leaves a revoked world is never taken for the lost one.
//  - A data connection may end before the cause has come over the control channel. So a link that ends is only
//    suspicious, until the control channel has ended as well, or half of the failure deadline has passed.
//
// What is decided on is in WatchCore, without thread and sockets (watch_core.h); here are the channels, the waits and
// the orders of other threads.
//
// In larger worlds, there are channels with some of the other workers only; those of late links are added
// (late_links.h).
//
// Heartbeats come several times a second, so the cost of a wake-up must not grow with the world: only channels that
// have something to read are read, and a tick looks at neighbours only.
//
// It has more fields than most classes: those that other threads write, and what its own thread has of each peer.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "transport/control.h"
#include "transport/watch_core.h"
#include "transport/world_status.h"

namespace farandole::transport {

struct Watched {
  int rank = -1;
  ControlChannel control;
  bool left = false;  // it has said goodbye already
};

class Watch {
 public:
  // `world_status` writes to `wake_fd` when it is revoked; both outlive the watch. `peers`: in ascending order of their
  // ranks.
  Watch(int rank, int size, double deadline_seconds, WorldStatus& world_status, int wake_fd,
        std::vector<Watched> peers);
  // Passes on why the world ended, if it did, and closes all channels. Without say_goodbye(), the peers take it
  // for the death of this worker, unless they know better.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // One more peer. Any thread.
  void add(int rank, ControlChannel control);
  // Says goodbye to all peers; returns when it is sent, or after the failure deadline. Any thread.
  void say_goodbye() noexcept;
  // A link to this rank has ended. Any thread.
  void suspect(int rank, Sign sign) noexcept;
  // This rank's lifeline broke. At most one rank is ever reported. Any thread.
  void report_death(int rank) noexcept;

  // Ends the thread, as the destructor does. Returns the ranks that may still be running in this world:
  // neither their goodbye nor their end was seen.
  std::vector<int> stop() noexcept;

 private:
  struct Peer {
    int rank = -1;
    ControlChannel control;
    bool awaits_room = false;  // for what is unsent
  };

  static constexpr int kNobody = -1;

  // Orders to the watch thread, from any other.
  struct Orders {
    explicit Orders(int size) : suspected(static_cast<size_t>(size)) {}
    std::vector<std::atomic<uint8_t>> suspected;  // by rank: the Sign, or 0
    std::atomic<bool> any_suspected{false};       // a rank was added
    std::atomic<int> dead{kNobody};
    std::atomic<bool> any_added{false};
    std::atomic<bool> stop{false};
    std::atomic<bool> leave{false};
  };

  void run();
  Peer& watch(int rank, ControlChannel control);
  void take_added();
  // Waits until something happens, at most until then, and notes which channels have something to read or room.
  void wait(int64_t until_ns);
  void follow_orders();
  void note_suspects();
  void read_readable();
  void flush_and_read(Peer& peer);
  void forget(Peer& peer) noexcept;
  void end(Peer& peer, Sign sign);
  // Lets the wait end, too, when what is unsent can be sent.
  void follow_room(Peer& peer) noexcept;
  void handle_death(int rank);
  void tick();
  void revoke(std::optional<Cause> cause);
  void send(const std::optional<WatchCore::Outgoing>& outgoing);
  void flush_all(int64_t until_ns);
  bool all_sent() const;
  void add_to_epoll(int fd, uint64_t number);
  void wake() noexcept;

  WorldStatus& world_status_;
  const int wake_fd_;

  // The watch thread only.
  WatchCore core_;
  std::map<int, Peer> peers_;  // by rank
  const PrivateFd epoll_fd_;
  std::vector<epoll_event> events_;
  std::vector<int> readable_;  // ranks

  Orders orders_;
  base::Mutex mutex_;
  std::vector<Watched> added_ GUARDED_BY(mutex_);
  base::Condition goodbye_changed_;
  bool said_goodbye_ GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: it starts when all else is there
};

}  // namespace farandole::transport
