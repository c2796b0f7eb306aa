// Worlds of threads for the tests of this room: every rank runs algorithms by itself, and no backend or engine is above
// it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <numeric>
#include <vector>

#include "collective/algorithm_table.h"
#include "collective/link_exchange.h"
#include "support/meshes.h"

namespace farandole::testing {

inline constexpr Kind kKinds[] = {Kind::kLoopback, Kind::kLoopbackLinks, Kind::kShm, Kind::kTcp, Kind::kTwoHosts};

// The objects that one rank works with.
class Member {
 public:
  Member(std::unique_ptr<transport::Mesh> mesh, transport::Arena& arena, size_t piece_bytes)
      : mesh_(std::move(mesh)),
        frames_(*mesh_, {}),
        sequence_(frames_),
        memory_(arena.allocate(transport::kWindows * piece_bytes)),
        staging_(sequence_, static_cast<std::byte*>(memory_), piece_bytes),
        arena(arena) {
    set_knobs({});
    std::vector<int> all(static_cast<size_t>(mesh_->size()));
    std::iota(all.begin(), all.end(), 0);
    world = group_of(0, all);
  }

  ~Member() { arena.release(memory_); }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  void set_knobs(const collective::Knobs& knobs) { knobs_ = collective::within_bounds(knobs, staging_.piece_bytes()); }

  int rank() const { return mesh_->rank(); }
  int size() const { return mesh_->size(); }
  transport::WorldStatus& world_status() { return mesh_->world_status(); }

  collective::Group group_of(uint32_t id, std::vector<int> members) const {
    collective::Group group{id, std::move(members)};
    group.index = group.index_of(rank());
    return group;
  }
  // The rows of a collective that can run in this group.
  std::vector<collective::Choice> rows_of(const std::string& collective, const collective::Group& group) const {
    const collective::Topology here = topology(group);
    std::vector<collective::Choice> rows;
    for (const collective::Algorithm& row : collective::algorithms()) {
      if (row.collective == collective && row.fits(here)) {
        rows.push_back({&row, static_cast<uint32_t>(&row - collective::algorithms().data()), "it is tested"});
      }
    }
    return rows;
  }

  // What an operation gets in this group when nothing is asked for.
  collective::Choice choose(collective::Operation operation, const collective::Group& group, size_t bytes = 0,
                            std::string_view wanted = "") const {
    return collective::choose(operation, topology(group), bytes, knobs_, wanted);
  }

  // Runs a collective as a decision of its own.
  template <typename Job>
  void run(const collective::Group& group, const collective::Choice& choice, const Job& job) {
    sequence_.begin(++decision);
    frames_.set_collective(decision);
    collective::Context context{frames_, sequence_, staging_, group, knobs_, exchanges_};
    collective::run(context, choice, job);
    after_run();
  }

  std::function<void()> after_run = [] {};

 private:
  collective::Topology topology(const collective::Group& group) const {
    return collective::topology_of(group, mesh_->hosts());
  }

  std::unique_ptr<transport::Mesh> mesh_;
  transport::FrameMultiplexer frames_;
  collective::ShmSequence sequence_;
  void* const memory_;
  collective::Staging staging_;
  collective::LinkExchanges exchanges_{frames_, staging_};
  collective::Knobs knobs_;

 public:
  transport::Arena& arena;
  collective::Group world;
  uint32_t decision = 0;
};

// Revokes the worlds of its members when none of them has finished anything for too long, so that a hang becomes a
// failure with a message. The duration of a whole test says nothing: a busy machine needs more than a minute for a
// thousand collectives.
class Watchdog {
 public:
  explicit Watchdog(double seconds) : thread_([this, seconds] { watch_progress(seconds); }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }
  void watch(transport::WorldStatus& world_status) {
    const std::lock_guard lock(mutex_);
    world_statuses_.push_back(&world_status);
  }
  void forget(transport::WorldStatus& world_status) {
    const std::lock_guard lock(mutex_);
    std::erase(world_statuses_, &world_status);
  }
  // A member has finished something.
  void feed() noexcept { fed_ = true; }
  void bark() {
    const std::lock_guard lock(mutex_);
    revoke_all("another rank has failed");
  }

 private:
  void watch_progress(double seconds) {
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return over_; })) {
      if (!fed_.exchange(false)) {
        revoke_all("a test hangs");
        return;
      }
    }
  }

  void revoke_all(const std::string& why) {
    for (transport::WorldStatus* world_status : world_statuses_) {
      world_status->revoke({-1, transport::Sign::kRevoked, why});
    }
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::atomic<bool> fed_ = false;
  std::vector<transport::WorldStatus*> world_statuses_;
  std::thread thread_;
};

// Runs body(member) on all ranks of one world, each in a thread. A rank that fails ends the world for all.
inline void on_all_members(Meshes& meshes, size_t piece_bytes, const std::function<void(Member&)>& body,
                           double patience = kPatience) {
  Watchdog watchdog(patience);
  std::latch all_done(meshes.size());
  on_all_ranks(meshes.size(), [&](int rank) {
    std::unique_ptr<Member> member;
    try {
      member = std::make_unique<Member>(meshes.form(rank), meshes.arena(rank), piece_bytes);
      watchdog.watch(member->world_status());
      member->after_run = [&watchdog] { watchdog.feed(); };
      body(*member);
      if (::testing::Test::HasFailure()) {
        watchdog.bark();
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << " threw: " << error.what();
      watchdog.bark();
    }
    // Others may still read this one's memory, and would take its closed links for a loss.
    all_done.arrive_and_wait();
    if (member) {
      watchdog.forget(member->world_status());
    }
  });
}

inline void on_all_members(Kind kind, int size, size_t piece_bytes, const std::function<void(Member&)>& body,
                           double patience = kPatience) {
  Meshes meshes(kind, size);
  on_all_members(meshes, piece_bytes, body, patience);
}

// Every transport with every size.
using Wiring = std::tuple<Kind, int>;
class EveryWorld : public ::testing::TestWithParam<Wiring> {
 protected:
  Kind kind() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  void run(size_t piece_bytes, const std::function<void(Member&)>& body) const {
    on_all_members(kind(), size(), piece_bytes, body);
  }
};

inline auto every_world() { return ::testing::Combine(::testing::ValuesIn(kKinds), ::testing::ValuesIn(kWorldSizes)); }
inline std::string name_of_world(const ::testing::TestParamInfo<Wiring>& info) {
  return name_of(std::get<0>(info.param)) + "_" + std::to_string(std::get<1>(info.param));
}

}  // namespace farandole::testing
