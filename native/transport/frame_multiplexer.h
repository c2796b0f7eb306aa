// Moves bytes over all links of a mesh at once, and is the one place where the engine thread waits.
//
// The frames on each link are described in link_frames.h.
//
// Links in memory are checked only if there is something to receive: their senders increment one word in the receiver's
// arena, its *mail*. A check costs one load while that word has not changed and nothing waits for room, however many
// workers a host has.
//
// Guarantees: send(), recv() and post() never block; wait() returns when its condition holds, or throws the
// world's error as soon as the world is revoked. Not thread-safe: one thread at a time owns it. When that thread lets
// go of it, another thread may sleep in its place: see prepare_sleep().
#pragma once

#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "transport/link_frames.h"
#include "transport/mesh.h"
#include "transport/poll_heuristic.h"

namespace farandole::transport {

// How long an idle engine polls before it sleeps. Between polls it yields its core, so that this pays
// even with several workers on a core: the awaited event is often one short turn of another thread away, and a sleep
// and a wake-up cost more than that.
struct WaitPolicy {
  int64_t spin_ns = 20'000;
  // In the middle of a collective it polls longer: all members are busy with it, and none has anything else to do.
  int64_t midway_ns() const noexcept { return 25 * spin_ns; }
};

// When a peer that may sleep is notified of a message. Late: only if its answer does not come within a moment. A thread
// that polls for the answer can afford that: most peers poll by themselves, and waking their engine thread would only
// take the core from the thread that polls.
enum class Notify : uint8_t { kNow, kLate };

// It has more methods than most classes: three small interfaces (messages, data frames, waits and sleep) over the same
// links, which one poll(2) serves all of.
class FrameMultiplexer {
 public:
  FrameMultiplexer(Mesh& mesh, WaitPolicy policy);

  Mesh& mesh() noexcept { return mesh_; }

  // Messages from this peer may come before anything is sent to it: there must be a link.
  void expect(int peer) { of(peer); }
  // Sends a message to a peer, as far as the link takes it now; later waits send the rest.
  void post(int peer, base::Bytes message, Notify notify = Notify::kNow);
  bool has_message() const noexcept { return !inbox_.empty(); }
  // Returns the oldest received message, if there is one.
  std::optional<Message> take_message();

  // The number of the collective that the following data frames belong to.
  void set_collective(uint32_t number) noexcept { collective_ = number; }
  // Sends or receives one data frame. Both ends must agree on its size. The memory must stay until done.
  // Returns a ticket for sent() or received().
  uint64_t send(int peer, std::span<const std::byte> bytes);
  uint64_t recv(int peer, std::span<std::byte> bytes);
  bool sent(int peer, uint64_t ticket) const noexcept { return links_[static_cast<size_t>(peer)]->sent(ticket); }
  bool received(int peer, uint64_t ticket) const noexcept {
    return links_[static_cast<size_t>(peer)]->received(ticket);
  }
  // Waits for all calls of send() and recv().
  void flush();
  // Waits at most until the deadline for posted messages to be handed to the links.
  void flush_messages(const base::Deadline& deadline);

  // Waits until `ready()` is true, which is checked after everything that could change it.
  template <typename Ready>
  void wait(Ready&& ready) {
    Poll poll;
    for (;;) {
      const bool moved = move();
      pause_ns_ = kSignalled;
      awaited_ = Doorbell::kAnybody;
      const bool is_ready = ready();
      if (is_ready || moved) {
        end_poll(poll);
      }
      if (is_ready) {
        return;
      }
      mesh_.world_status().throw_if_revoked();
      if (!moved && !keep_looking(poll, patience_ns())) {
        give_up(poll);
        sleep_midway(ready);
      }
    }
  }

  // Polls until `ready()` is true, and returns true; gives up when nothing has moved for `patience_ns`, or on `stop()`.
  template <typename Ready, typename Stop>
  bool look(Poll& poll, int64_t patience_ns, Ready&& ready, Stop&& stop) {
    for (;;) {
      const bool moved = move();
      if (ready()) {
        return true;
      }
      mesh_.world_status().throw_if_revoked();
      if (stop()) {
        return false;
      }
      if (moved) {
        poll = {};
      } else if (!keep_looking(poll, patience_ns)) {
        return false;
      }
    }
  }

  // For a sleep outside of wait(), idle or agreeing, by a thread that polls what `awaited()` says: from now on every
  // thread and worker that has something for this engine signals its doorbell. If there is something already, it does
  // not prepare the sleep and returns false.
  template <typename Ready>
  bool prepare_sleep(Sleep what_for, Ready&& ready) {
    notify_late();
    mesh_.doorbell().prepare_sleep(what_for);
    if (move() || ready() || mesh_.world_status().revoked()) {
      mesh_.doorbell().end_sleep();
      return false;
    }
    return true;
  }
  // Sleeps until something signals the doorbell, at most until then, unless there is something already. The calling
  // thread goes on owning this. For meshes without sockets: nothing else ends the sleep.
  template <typename Ready>
  void sleep_in_place(Sleep what_for, int64_t until_ns, Ready&& ready) {
    notify_late();
    mesh_.doorbell().prepare_sleep_in_place(what_for);
    if (!move() && !ready() && !mesh_.world_status().revoked()) {
      mesh_.doorbell().sleep_in_place(until_ns - base::now_ns());
    }
    mesh_.doorbell().end_sleep_in_place();
  }
  // What ends the sleep of prepare_sleep(): the doorbell, and sockets.
  std::vector<pollfd> awaited() const;
  // Whether it would be the same now.
  bool is_awaited(std::span<const pollfd> before) const noexcept;
  // A sleep ends by a signal or by a socket. This bounds it all the same: should a signal ever be lost, it costs a
  // second instead of a hang.
  static constexpr int64_t kLongestSleepNs = 1'000'000'000;

  // How wait() waits for sources that signal nothing: the sleep between two polls; 0: it polls all the time. `ready()`
  // sets it each time that it is called.
  void set_pause(int64_t pause_ns) noexcept { pause_ns_ = pause_ns; }
  // The rank whose sequence wait() waits for; the sequences of others do not end its sleep. `ready()` sets it each time
  // that it is called; if it does not, wait() waits for any rank's.
  void set_awaited(int rank) noexcept { awaited_ = rank; }

 private:
  static constexpr int64_t kSignalled = -1;  // until something signals

  LinkFrames& of(int peer) {
    auto& link = links_[static_cast<size_t>(peer)];
    return link == nullptr ? add(peer) : *link;
  }
  LinkFrames& add(int peer);
  // Moves what can be moved now; true if anything did.
  bool move();
  bool move_both(LinkFrames& link) {
    const bool moved_out = move_out(link);
    return move_in(link) || moved_out;
  }
  bool move_mail();
  bool move_out(LinkFrames& link);
  bool move_in(LinkFrames& link);
  bool keep_looking(Poll& poll, int64_t patience_ns) noexcept;
  int64_t patience_ns() const noexcept {
    if (pause_ns_ == kSignalled) {
      return poll_heuristic_.suggests_poll(collective_) ? policy_.midway_ns() : 0;
    }
    return pause_ns_ == 0 ? INT64_MAX : 0;
  }
  // Of wait(): it has found something after all, or not.
  void end_poll(Poll& poll) noexcept;
  void give_up(Poll& poll) noexcept;
  void notify_late() noexcept;
  // wait() has polled long enough.
  template <typename Ready>
  void sleep_midway(Ready& ready) {
    notify_late();
    Doorbell& doorbell = mesh_.doorbell();
    const int awaited = awaited_;
    const bool in_place = pause_ns_ < 0 && !has_sockets();
    in_place ? doorbell.prepare_sleep_in_place(Sleep::kMidway, awaited)
             : doorbell.prepare_sleep(Sleep::kMidway, awaited);
    // What came between the last check and the beginning of the sleep sent no signal: check once more.
    if (!move() && !ready() && awaited_ == awaited && !mesh_.world_status().revoked()) {
      in_place ? doorbell.sleep_in_place(kLongestSleepNs) : sleep();
    }
    in_place ? doorbell.end_sleep_in_place() : doorbell.end_sleep();
  }
  void sleep();
  bool has_sockets() const noexcept;
  // Calls `visit` for what awaited() lists, until it returns false.
  template <typename Visit>
  bool for_each_awaited(Visit&& visit) const {
    return visit(pollfd{mesh_.doorbell().fd(), POLLIN, 0}) && std::ranges::all_of(without_mail_, [&](const auto* link) {
             return link->poll_fd() < 0 || link->events() == 0 || visit(pollfd{link->poll_fd(), link->events(), 0});
           });
  }

  Mesh& mesh_;
  const WaitPolicy policy_;
  uint32_t collective_ = 0;
  std::vector<std::unique_ptr<LinkFrames>> links_;  // by rank; none to oneself, and none that was not used yet
  std::vector<LinkFrames*> with_mail_;              // those whose peers count mail
  std::vector<LinkFrames*> without_mail_;           // those that must be looked at each time
  uint64_t seen_mail_ = 0;
  bool has_news_ = true;  // for links with mail: something was queued or posted, or waits for room
  std::deque<Message> inbox_;
  int unnotified_ = -1;  // the peer that is still to be notified, if any
  int64_t pause_ns_ = kSignalled;
  int awaited_ = Doorbell::kAnybody;
  PollHeuristic poll_heuristic_;  // for wait()
};

}  // namespace farandole::transport
