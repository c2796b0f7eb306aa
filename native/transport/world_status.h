// The status of one world, seen by one worker: the world lives until it is revoked, and it is revoked once.
// Every wait of the engine watches it, so no wait outlives its generation.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/mutex.h"
#include "transport/doorbell.h"

namespace farandole::transport {

// The sign by which a loss was noticed, from certain to suspected.
enum class Sign : uint8_t {
  kClosed = 1,   // its process has ended: the kernel closed its connections, or let go of its lifeline
  kSilent = 2,   // no heartbeat until the failure deadline: stopped, or cut off
  kRevoked = 3,  // a layer above said so: the roster, or the caller of revoke()
  kBroken = 4,   // the data that came cannot be right; an internal error, reported instead of a wrong number
  kStalled = 5,  // it did not ask for what others waited for, for longer than they were told to wait
};

// Whether the named worker has certainly left the world. Otherwise it may live, and may come back to it.
constexpr bool is_certain(Sign sign) noexcept { return sign == Sign::kClosed || sign == Sign::kRevoked; }

// The reason why a generation ended. Survivors pass it on unchanged, so that all of them report the same.
struct Cause {
  int rank = -1;  // the worker that was lost; -1 if none in particular
  Sign sign = Sign::kRevoked;
  std::string text;  // a whole sentence, for people
};

// The one sentence for a certain or suspected loss, the same on every survivor.
std::string describe_loss(int rank, Sign sign);

class WorldStatus {
 public:
  // When the world is revoked, `doorbell` is signalled, so that a sleeping engine wakes up, and `watch_fd`, an
  // eventfd, is written to, so that the watch thread tells the other workers. They may be null and -1 (tests),
  // and outlive the status.
  explicit WorldStatus(Doorbell* doorbell, int watch_fd = -1) : doorbell_(doorbell), watch_fd_(watch_fd) {}
  WorldStatus(const WorldStatus&) = delete;
  WorldStatus& operator=(const WorldStatus&) = delete;

  // The first cause wins; true if it was this one. Any thread.
  bool revoke(Cause cause);

  bool revoked() const noexcept { return revoked_.load(std::memory_order_acquire); }
  std::optional<Cause> cause() const;
  // The error that every pending and later request of this generation gets. Requires revoked().
  base::Error error() const;
  void throw_if_revoked() const {
    if (revoked()) {
      throw error();
    }
  }

 private:
  Doorbell* const doorbell_;
  const int watch_fd_;
  std::atomic<bool> revoked_{false};
  mutable base::Mutex mutex_;
  std::optional<Cause> cause_ GUARDED_BY(mutex_);
};

}  // namespace farandole::transport
