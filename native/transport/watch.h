// The watch thread of one mesh: it notices that a worker is lost, and sees to it that every worker of the world
// hears of it, in milliseconds and in the same words.
//
// It owns the control channels of the mesh. It needs no lock of anybody, so it works while the engine computes
// and while the framework holds its own locks.
//
//  - A control channel that closes without a goodbye: that worker's process has ended. Certain, acts at once.
//  - A worker of this host whose lifeline broke (see lifeline.h): the same, sooner.
//  - A neighbour (rank +-1, +-2, cyclically) that sent no heartbeat for the failure deadline: silent. The other
//    channels are idle but for the kernel's keepalive probes, which end them when nobody answers.
//  - The first cause, wherever it comes from, is sent to all peers once, unchanged. Channels are read in order,
//    and whoever ends his world says why before he closes: so a survivor that leaves a revoked world is never
//    taken for the lost one.
//  - A data connection may be seen to end before the word of its cause has come over the control channel. So a
//    link that ends is only suspicious, until the control channel has spoken.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "transport/control.h"
#include "transport/world_status.h"

namespace farandole::transport {

struct Watched {
  int rank = -1;
  ControlChannel control;
  bool left = false;  // it has said goodbye
};

class Watch {
 public:
  // `status` writes to `wake_fd` when it is revoked; both outlive the watch. `peers` are all other ranks.
  Watch(int rank, int size, double deadline_seconds, WorldStatus& world_status, int wake_fd,
        std::vector<Watched> peers);
  // Passes on why the world ended, if it did, and closes all channels. Without part(), the peers take it as
  // the death of this worker, unless they know better.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Says goodbye to all peers; returns when it is sent, or after the failure deadline. Any thread.
  void part() noexcept;
  // A link to this rank has ended. Any thread.
  void suspect(int rank, Sign sign) noexcept;
  // This rank's lifeline broke. At most one rank is ever reported. Any thread.
  void report_death(int rank) noexcept;

  // Ends the thread, as the destructor does. Returns the ranks that may still be running in this world:
  // neither their goodbye nor their end was seen.
  std::vector<int> stop() noexcept;

 private:
  struct Peer {
    Watched watched;
    bool neighbour = false;
    bool ended = false;
    int64_t heard_ns = 0;    // when its last word came
    int64_t suspect_ns = 0;  // when a link to it ended; 0: not
  };

  static constexpr int kNobody = -1;

  void run();
  void wait();
  void obey();
  void read_all();
  void read(Peer& peer);
  void handle_deaths(int rank);
  void hear(Peer& peer, const ControlFrame& frame);
  void lose(const Peer& peer, Sign sign);
  void tick();
  void start_clocks_anew(int64_t now);
  void tell_all(const ControlFrame& frame);
  void flush_all(int64_t until_ns);
  bool all_sent() const;
  void wake() noexcept;

  const int rank_;
  const int64_t deadline_ns_;
  const int64_t tick_ns_;
  WorldStatus& world_status_;
  const int wake_fd_;

  // The watch thread only.
  std::vector<Peer> peers_;
  std::vector<pollfd> polled_;
  int64_t next_tick_ns_;
  bool parted_ = false;
  bool spread_ = false;  // the cause was sent to all

  // Orders to the watch thread, from any other.
  std::vector<std::atomic<uint8_t>> suspected_;  // by rank: the Sign, or 0
  std::atomic<int> dead_{kNobody};
  std::atomic<bool> stop_{false};
  std::atomic<bool> part_{false};
  base::Mutex mutex_;
  base::Condition said_;
  bool said_goodbye_ GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: it starts when all else is there
};

}  // namespace farandole::transport
