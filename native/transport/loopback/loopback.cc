#include "transport/loopback/loopback.h"

#include <fcntl.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>

#include "base/error.h"
#include "base/mutex.h"
#include "base/unique_fd.h"

namespace farandole::transport {
namespace {

// One direction of a link: a bounded queue of bytes.
class Pipe {
 public:
  explicit Pipe(size_t capacity) : bytes_(capacity) {}

  size_t write(std::span<const std::byte> from, size_t at_most) {
    const base::MutexLock lock(mutex_);
    const size_t count = std::min({from.size(), bytes_.size() - size_, at_most});
    const size_t at = (begin_ + size_) % bytes_.size();
    const size_t before_wrap = std::min(count, bytes_.size() - at);
    std::copy_n(from.begin(), before_wrap, bytes_.begin() + static_cast<ptrdiff_t>(at));
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(before_wrap), count - before_wrap, bytes_.begin());
    size_ += count;
    return count;
  }

  size_t read(std::span<std::byte> to, size_t at_most) {
    const base::MutexLock lock(mutex_);
    const size_t count = std::min({to.size(), size_, at_most});
    const size_t before_wrap = std::min(count, bytes_.size() - begin_);
    std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(begin_), before_wrap, to.begin());
    std::copy_n(bytes_.begin(), count - before_wrap, to.begin() + static_cast<ptrdiff_t>(before_wrap));
    begin_ = (begin_ + count) % bytes_.size();
    size_ -= count;
    return count;
  }

 private:
  base::Mutex mutex_;
  std::vector<std::byte> bytes_ GUARDED_BY(mutex_);
  size_t begin_ GUARDED_BY(mutex_) = 0;
  size_t size_ GUARDED_BY(mutex_) = 0;
};

}  // namespace

struct LoopbackWorld::State {
  struct Worker {
    explicit Worker(size_t arena_bytes)
        : arena(arena_bytes),
          event_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
          doorbell(&arena.view().header().sleeping, event_fd.get()),
          world_status(&doorbell) {}
    Arena arena;
    base::UniqueFd event_fd;
    Doorbell doorbell;
    WorldStatus world_status;
    std::atomic<bool> parted{false};
    std::atomic<bool> killed{false};
    std::atomic<uint64_t> operations{0};
  };

  State(LoopbackSettings with, FaultInjector inject) : settings(std::move(with)), injector(std::move(inject)) {
    const auto size = static_cast<size_t>(settings.size);
    if (settings.hosts.empty()) {
      settings.hosts.assign(size, 0);
      for (size_t rank = 0; !settings.shared_memory && rank < size; ++rank) {
        settings.hosts[rank] = static_cast<int>(rank);
      }
    }
    for (size_t rank = 0; rank < size; ++rank) {
      workers.push_back(std::make_unique<Worker>(settings.arena_bytes));
      workers.back()->arena.view().serve(settings.generation);
    }
    for (size_t pair = 0; pair < size * size; ++pair) {
      pipes.push_back(std::make_unique<Pipe>(settings.link_bytes));
    }
  }

  Worker& worker(int rank) { return *workers[static_cast<size_t>(rank)]; }
  Pipe& pipe(int from, int to) { return *pipes[static_cast<size_t>(from) * workers.size() + static_cast<size_t>(to)]; }
  bool share(int a, int b) const {
    return settings.shared_memory && settings.hosts[static_cast<size_t>(a)] == settings.hosts[static_cast<size_t>(b)];
  }

  // Every worker hears of a loss at once, and all of the same loss: a broadcast without delay.
  void lose(const Cause& cause) {
    const base::MutexLock lock(mutex);
    if (!lost) {
      lost = cause;
    }
    for (auto& each : workers) {
      each->world_status.revoke(*lost);
    }
  }

  void kill(int rank) {
    worker(rank).killed = true;
    worker(rank).world_status.revoke({rank, Sign::kRevoked, "this worker was killed by the test"});
    if (!worker(rank).parted) {
      lose({rank, Sign::kClosed, describe_loss(rank, Sign::kClosed)});
    }
  }

  // Lets the injector act before an operation of `self`; returns the part of the operation that remains.
  LinkFault disturb(int self, int peer) {
    Worker& me = worker(self);
    if (!injector || me.killed) {
      return {};
    }
    const LinkFault fault = injector(self, peer, me.operations++);
    if (fault.kill) {
      kill(self);
      throw me.world_status.error();
    }
    if (fault.cut) {
      lose({peer, Sign::kClosed, describe_loss(peer, Sign::kClosed)});
    }
    return fault;
  }

  LoopbackSettings settings;
  FaultInjector injector;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::unique_ptr<Pipe>> pipes;
  base::Mutex mutex;
  std::optional<Cause> lost GUARDED_BY(mutex);
};

namespace {

// Templates only because LoopbackWorld::State is private to its class.
template <typename World>
class LoopbackLink final : public Link {
 public:
  LoopbackLink(World& world, int self, int peer) : world_(world), self_(self), peer_(peer) {}

  size_t try_send(std::span<const std::byte> bytes) override {
    return operate([&](size_t at_most) { return world_.pipe(self_, peer_).write(bytes, at_most); });
  }
  size_t try_recv(std::span<std::byte> bytes) override {
    const size_t got = operate([&](size_t at_most) { return world_.pipe(peer_, self_).read(bytes, at_most); });
    if (got > 0) {
      notify();  // there is room again
    }
    return got;
  }
  void notify() noexcept override { world_.worker(peer_).doorbell.signal(); }

 private:
  template <typename Operation>
  size_t operate(Operation&& operation) {
    const LinkFault fault = world_.disturb(self_, peer_);
    if (fault.stall) {
      // No signal will come for bytes that are there already.
      world_.worker(self_).doorbell.signal();
      return 0;
    }
    if (world_.worker(self_).world_status.revoked()) {
      return 0;
    }
    return operation(fault.at_most);
  }

  World& world_;
  const int self_;
  const int peer_;
};

template <typename World>
class LoopbackMesh final : public Mesh {
 public:
  LoopbackMesh(std::shared_ptr<World> world, int rank) : world_(std::move(world)), rank_(rank) {
    for (int peer = 0; peer < world_->settings.size; ++peer) {
      links_.emplace_back(*world_, rank_, peer);
    }
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return world_->settings.size; }
  uint64_t generation() const noexcept override { return world_->settings.generation; }
  Link& link(int peer) override { return links_[static_cast<size_t>(peer)]; }
  Doorbell& doorbell() override { return world_->worker(rank_).doorbell; }
  WorldStatus& world_status() override { return world_->worker(rank_).world_status; }
  const ArenaView* arena(int peer) const noexcept override {
    return world_->share(rank_, peer) || peer == rank_ ? &world_->worker(peer).arena.view() : nullptr;
  }
  void wake(int peer, Sleep what_for) noexcept override {
    try {
      world_->disturb(rank_, peer);
    } catch (const base::Error&) {
      return;  // killed here: the next wait finds its status
    }
    world_->worker(peer).doorbell.signal(what_for, rank_);
  }
  const std::vector<int>& hosts() const noexcept override { return world_->settings.hosts; }
  void say_goodbye() noexcept override { world_->worker(rank_).parted = true; }
  std::string describe() const override { return "loopback"; }
  std::string describe_route(int) const override { return "loopback"; }

 private:
  std::shared_ptr<World> world_;
  const int rank_;
  std::vector<LoopbackLink<World>> links_;
};

}  // namespace

LoopbackWorld::LoopbackWorld(LoopbackSettings settings, FaultInjector injector)
    : state_(std::make_shared<State>(std::move(settings), std::move(injector))) {}

LoopbackWorld::~LoopbackWorld() = default;

std::unique_ptr<Mesh> LoopbackWorld::mesh(int rank) { return std::make_unique<LoopbackMesh<State>>(state_, rank); }

void LoopbackWorld::kill(int rank) { state_->kill(rank); }

bool LoopbackWorld::killed(int rank) const { return state_->worker(rank).killed; }

Arena& LoopbackWorld::arena(int rank) { return state_->worker(rank).arena; }

void LoopbackWorld::revoke(const Cause& cause) { state_->lose(cause); }

}  // namespace farandole::transport
