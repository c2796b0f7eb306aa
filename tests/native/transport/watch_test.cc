// The watch thread alone: what it reads and sends, on socket pairs whose other ends the test holds.
#include "transport/watch.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/sanitized.h"
#include "transport/pending_world.h"
#include "transport/worlds.h"

namespace {

std::atomic<bool> counts_receives = false;
std::atomic<int> receives = 0;

}  // namespace

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
// In the place of the C library's, so that calls can be counted.
extern "C" ssize_t recv(int fd, void* buffer, size_t bytes, int flags) {
  receives += counts_receives ? 1 : 0;
  return ::syscall(SYS_recvfrom, fd, buffer, bytes, flags, nullptr, nullptr);
}
#endif

namespace farandole::transport::testing {
namespace {

constexpr double kNever = 1e6;  // seconds

// Rank 0 of a world, and the other ends of its control channels.
class WatchedWorld {
 public:
  // The channel to `full` has no room when the watch begins.
  explicit WatchedWorld(int size, int full = -1) {
    std::vector<Watched> watched;
    for (int rank = 1; rank < size; ++rank) {
      int pair[2];
      const ForkHold hold;
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
      watched.push_back({.rank = rank, .control = ControlChannel(PrivateFd(pair[0], hold))});
      peers_.emplace_back(PrivateFd(pair[1], hold));
      while (rank == full && !watched.back().control.has_unsent()) {
        watched.back().control.send(ControlFrame(ControlKind::kHeartbeat));
      }
    }
    watch_.emplace(0, size, kNever, status(), pending_.watch_fd.get(), std::move(watched));
  }

  ControlChannel& peer(int rank) { return peers_[static_cast<size_t>(rank) - 1]; }
  WorldStatus& status() { return pending_.world_status; }
  Watch& watch() { return *watch_; }

  // The next frame that rank 0 sends to this one, other than heartbeats.
  ControlFrame next_frame(int rank) {
    std::optional<ControlFrame> frame;
    EXPECT_TRUE(eventually([&] {
      frame = peer(rank).receive();
      return frame.has_value() && frame->kind != ControlKind::kHeartbeat;
    }));
    return *frame;
  }

 private:
  std::atomic<uint32_t> sleeping_{0};
  PendingWorld pending_{1, sleeping_, -1};
  std::vector<ControlChannel> peers_;
  std::optional<Watch> watch_;
};

TEST(Watch, ReadsOnlyChannelsThatHaveSomethingToRead) {
  if (farandole::testing::kSanitized) {
    GTEST_SKIP() << "a sanitizer has a recv() of its own";
  }
  constexpr int kSize = 200;
  constexpr int kFrames = 10;
  WatchedWorld world(kSize);
  receives = 0;
  counts_receives = true;
  for (int i = 1; i < kFrames; ++i) {
    world.peer(1).send(ControlFrame(ControlKind::kHeartbeat));
  }
  world.peer(1).send(revoke_frame({1, Sign::kRevoked, "the end of the test"}));
  // This rank is told, and receives nothing else, because it is not a neighbour.
  pollfd told = {.fd = world.peer(64).fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&told, 1, static_cast<int>(kPatience * 1e3)), 1);
  counts_receives = false;
  EXPECT_LE(receives, 2 * kFrames) << "one call for a frame, and one that finds no other";
}

TEST(Watch, CauseThatFindsNoRoomIsSentWhenThereIsRoom) {
  WatchedWorld world(4, /*full=*/2);
  world.status().revoke({1, Sign::kRevoked, std::string(1000, 'x')});
  for (const int rank : {1, 3, 2}) {
    EXPECT_EQ(world.next_frame(rank).text, std::string(1000, 'x'));
  }
}

TEST(Watch, GoodbyeSentBeforeDeathIsReadBeforeIt) {
  for (int round = 0; round < 50; ++round) {
    WatchedWorld world(4);
    world.peer(2).send(ControlFrame(ControlKind::kGoodbye));
    world.watch().report_death(2);
    world.peer(1) = ControlChannel();
    ASSERT_TRUE(eventually([&] { return world.status().revoked(); }));
    EXPECT_EQ(world.status().cause()->rank, 1) << "rank 2 had left";
  }
}

}  // namespace
}  // namespace farandole::transport::testing
