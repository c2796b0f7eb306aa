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

// A process that holds the lifeline of its own arena, until it is killed. (One that is forked from the owner of an
// arena has that memory for itself only, so it cannot hold the owner's lifeline.)
class Holder {
 public:
  explicit Holder(bool renews = false) {
    int up[2];
    int down[2];
    EXPECT_EQ(::pipe(up), 0);
    EXPECT_EQ(::pipe(down), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::alarm(60);
      Arena arena(kArenaBytes);
      const Lifeline lifeline(arena.view());
      tell(up[1], arena.fd());
      if (renews) {
        hear(down[0]);
        arena.renew();
        tell(up[1], arena.fd());
      }
      ::pause();
      ::_exit(0);
    }
    memory = map(hear(up[0]));
    if (renews) {
      tell(down[1], 0);
      renewed = map(hear(up[0]));
    }
    for (const int fd : {up[0], up[1], down[0], down[1]}) {
      ::close(fd);
    }
  }
  ~Holder() { kill(); }

  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }

  // As workers have it that were handed the arena at first, and after it was renewed.
  std::shared_ptr<const Mapping> memory;
  std::shared_ptr<const Mapping> renewed;

 private:
  static void tell(int pipe, int number) {
    EXPECT_EQ(::write(pipe, &number, sizeof number), static_cast<ssize_t>(sizeof number));
  }
  static int hear(int pipe) {
    int number = -1;
    EXPECT_EQ(::read(pipe, &number, sizeof number), static_cast<ssize_t>(sizeof number));
    return number;
  }
  // `memory` is a descriptor in that process.
  std::shared_ptr<const Mapping> map(int memory) const {
    const std::string path = "/proc/" + std::to_string(pid_) + "/fd/" + std::to_string(memory);
    const base::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    return std::make_shared<const Mapping>(fd.get(), 0);
  }

  pid_t pid_ = -1;
};

TEST(LifelineTest, BreaksWhenItsProcessDies) {
  Holder holder;
  std::atomic<int> seen{0};
  const PeerDeathWatcher watcher(holder.memory, [&] { ++seen; });
  EXPECT_FALSE(has_died(holder.memory->view()));
  holder.kill();
  EXPECT_TRUE(eventually([&] { return seen == 1; }));
  EXPECT_TRUE(has_died(holder.memory->view()));
}

TEST(LifelineTest, ShowsDeathToAllWatchers) {
  Holder holder;
  std::atomic<int> seen{0};
  std::vector<std::unique_ptr<PeerDeathWatcher>> watchers;
  for (int i = 0; i < 8; ++i) {
    watchers.push_back(std::make_unique<PeerDeathWatcher>(holder.memory, [&] { ++seen; }));
  }
  holder.kill();
  EXPECT_TRUE(eventually([&] { return seen == 8; }));
}

TEST(LifelineTest, ShowsEarlierDeath) {
  Holder holder;
  holder.kill();
  std::atomic<int> seen{0};
  const PeerDeathWatcher watcher(holder.memory, [&] { ++seen; });
  EXPECT_TRUE(eventually([&] { return seen == 1; }));
}

TEST(LifelineTest, ReleaseInGoodOrderIsNotDeath) {
  const Arena arena(kArenaBytes);
  auto lifeline = std::make_unique<Lifeline>(arena.view());
  std::atomic<int> seen{0};
  auto watcher = std::make_unique<PeerDeathWatcher>(map(arena), [&] { ++seen; });
  lifeline.reset();
  watcher.reset();
  EXPECT_EQ(seen, 0);
  EXPECT_FALSE(has_died(arena.view()));
}

TEST(LifelineTest, LifelineWithoutHolderIsNotDeath) {
  const Arena arena(kArenaBytes);
  std::atomic<int> seen{0};
  std::make_unique<PeerDeathWatcher>(map(arena), [&] { ++seen; }).reset();
  EXPECT_EQ(seen, 0);
}

TEST(LifelineTest, EndOfWatcherDoesNotChangeIt) {
  const Arena arena(kArenaBytes);
  const Lifeline lifeline(arena.view());
  std::atomic<int> seen{0};
  const PeerDeathWatcher stays(map(arena), [&] { ++seen; });
  for (int i = 0; i < 500; ++i) {
    const PeerDeathWatcher goes(map(arena), [&] { ++seen; });
  }
  EXPECT_EQ(seen, 0);
}

TEST(LifelineTest, WorksInRenewedMemory) {
  Holder holder(/*renews=*/true);
  std::atomic<int> seen{0};
  const PeerDeathWatcher watcher(holder.renewed, [&] { ++seen; });
  holder.kill();
  EXPECT_TRUE(eventually([&] { return seen == 1; }));
  EXPECT_FALSE(has_died(holder.memory->view()));  // what was there before is not looked at any more
}

}  // namespace
}  // namespace farandole::transport::testing
