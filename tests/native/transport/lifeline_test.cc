// Lifelines by themselves: what is seen as a death, and what is not. In worlds: processes_test.cc.
#include "transport/lifeline.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "transport/worlds.h"

namespace farandole::transport::testing {
namespace {

std::shared_ptr<const Mapping> map(const Arena& arena) { return std::make_shared<const Mapping>(arena.fd(), 0); }

// A process that holds the lifeline of an arena of this one, until it is killed.
class Holder {
 public:
  explicit Holder(Arena& arena, bool renews = false) {
    int up[2];
    EXPECT_EQ(::pipe(up), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const Lifeline lifeline(arena.view());
      if (renews) {
        arena.renew();
      }
      const int memory = arena.fd();
      EXPECT_EQ(::write(up[1], &memory, sizeof memory), static_cast<ssize_t>(sizeof memory));
      ::alarm(60);
      ::pause();
      ::_exit(0);
    }
    EXPECT_EQ(::read(up[0], &memory_, sizeof memory_), static_cast<ssize_t>(sizeof memory_));
    ::close(up[0]);
    ::close(up[1]);
  }
  ~Holder() { kill(); }

  // As a worker that is handed the arena now.
  std::shared_ptr<const Mapping> map() const {
    const std::string path = "/proc/" + std::to_string(pid_) + "/fd/" + std::to_string(memory_);
    const base::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    return std::make_shared<const Mapping>(fd.get(), 0);
  }

  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }

 private:
  pid_t pid_ = -1;
  int memory_ = -1;  // its descriptor, in that process
};

TEST(LifelineTest, BreaksWhenItsProcessDies) {
  Arena arena(kArenaBytes);
  Holder holder(arena);
  std::atomic<int> seen{0};
  const PeerDeathWatcher watcher(map(arena), [&] { ++seen; });
  EXPECT_FALSE(has_died(arena.view()));
  holder.kill();
  EXPECT_TRUE(eventually([&] { return seen == 1; }));
  EXPECT_TRUE(has_died(arena.view()));
}

TEST(LifelineTest, ShowsADeathToAllWhoWatch) {
  Arena arena(kArenaBytes);
  Holder holder(arena);
  std::atomic<int> seen{0};
  std::vector<std::unique_ptr<PeerDeathWatcher>> watchers;
  for (int i = 0; i < 8; ++i) {
    watchers.push_back(std::make_unique<PeerDeathWatcher>(map(arena), [&] { ++seen; }));
  }
  holder.kill();
  EXPECT_TRUE(eventually([&] { return seen == 8; }));
}

TEST(LifelineTest, ShowsADeathThatCameBefore) {
  Arena arena(kArenaBytes);
  Holder(arena).kill();
  std::atomic<int> seen{0};
  const PeerDeathWatcher watcher(map(arena), [&] { ++seen; });
  EXPECT_TRUE(eventually([&] { return seen == 1; }));
}

TEST(LifelineTest, LetGoInGoodOrderIsNoDeath) {
  const Arena arena(kArenaBytes);
  auto lifeline = std::make_unique<Lifeline>(arena.view());
  std::atomic<int> seen{0};
  auto watcher = std::make_unique<PeerDeathWatcher>(map(arena), [&] { ++seen; });
  lifeline.reset();
  watcher.reset();
  EXPECT_EQ(seen, 0);
  EXPECT_FALSE(has_died(arena.view()));
}

TEST(LifelineTest, ThatNobodyHoldsIsNoDeath) {
  const Arena arena(kArenaBytes);
  std::atomic<int> seen{0};
  std::make_unique<PeerDeathWatcher>(map(arena), [&] { ++seen; }).reset();
  EXPECT_EQ(seen, 0);
}

TEST(LifelineTest, IsLeftAloneByWatchersThatEnd) {
  const Arena arena(kArenaBytes);
  const Lifeline lifeline(arena.view());
  std::atomic<int> seen{0};
  const PeerDeathWatcher stays(map(arena), [&] { ++seen; });
  for (int i = 0; i < 500; ++i) {
    const PeerDeathWatcher goes(map(arena), [&] { ++seen; });
  }
  EXPECT_EQ(seen, 0);
}

TEST(LifelineTest, GoesOnInMemoryThatIsRenewed) {
  Arena arena(kArenaBytes);
  Holder holder(arena, /*renews=*/true);
  std::atomic<int> seen{0};
  const PeerDeathWatcher watcher(holder.map(), [&] { ++seen; });
  holder.kill();
  EXPECT_TRUE(eventually([&] { return seen == 1; }));
  EXPECT_FALSE(has_died(arena.view()));  // this process still has what was there before
}

}  // namespace
}  // namespace farandole::transport::testing
