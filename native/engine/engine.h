// The engine of one worker: queue -> agree -> fuse -> run, in one background thread.
//
// User threads submit() requests, which checks them and puts them on a queue, and wait for their handles. The engine
// thread owns everything else: it reports to rank 0 what is ready, obeys its decisions in order, and runs buckets
// one after the other. It sleeps until there is something to do.
//
// A world ends once: because a worker was lost (the mesh's Fate is revoked), because one left in good order, or
// because leave() was called here. From then on every pending and later request fails with the one error that says
// why, until the engine enters the next world.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "backend/native.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mutex.h"
#include "engine/catalog.h"
#include "engine/completion.h"
#include "engine/coordinator.h"
#include "engine/events.h"
#include "engine/request.h"
#include "engine/stall.h"
#include "transport/arena.h"
#include "transport/mesh.h"
#include "transport/pump.h"

namespace farandole::engine {

struct EngineSettings {
  int64_t fusion_threshold = int64_t{128} << 20;      // bytes; rank 0's counts for all, as do the next two
  uint64_t half_bytes = uint64_t{4} << 20;            // of staging
  std::string algorithm;                              // a name from the table, or empty
  int64_t spin_ns = transport::WaitPolicy{}.spin_ns;  // how long a wait looks before it sleeps
  // Some ranks wait for others: when rank 0 warns, and when it ends the world. 0: never.
  double stall_warning_seconds = 60;
  double stall_shutdown_seconds = 0;
};

struct Request {
  uint32_t group = 0;
  std::string name;
  Signature signature;
  const void* input = nullptr;
  void* output = nullptr;
  std::vector<int64_t> splits{};  // alltoall: rows for each member; empty: equal parts
};

struct KindStats {
  uint64_t requests = 0;
  uint64_t buckets = 0;
  uint64_t bytes = 0;
  uint64_t waiting_ns = 0;      // of requests: from submit until the last member was ready
  uint64_t negotiating_ns = 0;  // of requests: from then until this rank knew
  uint64_t moving_ns = 0;       // of buckets
};

struct Stats {
  uint64_t rounds = 0;
  uint64_t sleeps = 0;
  std::array<KindStats, kKinds> kinds{};
};

class Engine {
 public:
  explicit Engine(EngineSettings settings);
  // Ends the world as if the process had died.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Enters a world and starts the engine thread. `arena` is the one that the mesh shares; it outlives the stay.
  // Requires that the engine is in no world.
  void enter(std::unique_ptr<transport::Mesh> mesh, transport::Arena& arena);
  // Leaves in good order; after the deadline, without. Afterwards the engine is in no world.
  void leave(const base::Deadline& deadline);
  // Ends the world at once, for everyone in it, and leaves it.
  void abandon(const transport::Cause& cause);
  // Ends the world at once, for everyone in it; the engine stays in it, with every request failing.
  void revoke(const transport::Cause& cause);
  // Throws why the world has ended, if it has; kInvalidArgument when the engine was never in one.
  void check_health() const;

  // Submits all or none. Throws Error(kInvalidArgument), or the error that ended the world.
  std::vector<Handle> submit(std::vector<Request> requests);
  Completions& completions() noexcept { return completions_; }
  // 0 when there is no such group.
  size_t size_of_group(uint32_t group) const;

  Stats stats() const;
  Events& events() noexcept { return events_; }

  // Waits until others, who wait for this rank, ask what it is doing. 1: they do, 0: the deadline has passed, -1: there
  // is no world, or none any more.
  int wait_question(const base::Deadline& deadline, uint64_t& question);
  // What the program is doing, for those who asked.
  void answer(uint64_t question, std::string text);

 private:
  // A request from submit() to its end. Owned by the queue, then by the engine thread.
  struct Pending {
    Request request;
    std::shared_ptr<Completion> completion;  // null when this rank is absent: it has joined and never asked
    int64_t submitted_ns = 0;
    int64_t waited_ns = 0;      // until the last member was ready
    int64_t negotiated_ns = 0;  // from then until this rank knew
    uint32_t name_number = kNone;
    uint32_t bucket = kNone;
  };
  // What the engine thread knows of a group that this worker is a member of.
  struct Membership {
    collective::Group group;
    Catalog catalog;
    std::unordered_map<std::string, std::unique_ptr<Pending>> reported;  // by name
  };
  // An agreed request on its way into a bucket.
  struct Runnable {
    std::unique_ptr<Pending> pending;
    std::vector<int64_t> sizes;  // of an allgather
    collective::Choice choice{};
  };

  // --- any thread
  void check(const Request& request) const REQUIRES(mutex_);
  void check_kind(const Request& request, const collective::Group& group) const REQUIRES(mutex_);
  std::string not_a_member(const Request& request, const collective::Group& group) const;
  void stop_thread();

  // --- engine thread
  void thread_main();
  void break_off(const transport::Cause& cause);
  void live();
  void wait_for_work();
  void wait_for_everyone();
  void report_new_requests();
  void report(std::unique_ptr<Pending> pending, Ready& ready, std::map<uint32_t, BitSet>& known);
  void send_ready(const Ready& ready);
  void issue(const Decision& decision);
  void receive_messages();
  // Rank 0: counts what a rank has ready.
  void count(int rank, const Ready& ready);
  void obey(const Decision& decision);
  void obey_charter(const Decision& decision);
  void obey_run(const Decision& decision);
  void add_group(const Decision::Agreed& agreed);
  void remove_group(uint32_t id);
  Runnable take_agreed(Membership& membership, const Decision::Agreed& agreed, bool absent);
  std::unique_ptr<Pending> absent_part(const Membership& membership, const Decision::Agreed& agreed) const;
  std::unique_ptr<Pending> take_join();
  void fail_refused(Membership& membership, const Decision::Refused& refused);
  // Tells apart, for statistics, how long these waited for others and how long for the word of it.
  void measure_agreement(const Decision& decision, std::vector<Runnable>& runnables);
  // Rank 0: looks for ranks that others wait for.
  void look_for_stalls();
  // Others wait for this rank: says what it asked for last, and passes the question on to the program.
  void be_asked(uint64_t question);
  void run_all(const collective::Group& group, std::vector<Runnable> runnables);
  void run_bucket(const collective::Group& group, const std::vector<Runnable*>& bucket);
  void run_allreduce(const collective::Group& group, const std::vector<Runnable*>& bucket);
  void run_allgather(const collective::Group& group, Runnable& runnable);
  void run_broadcast(const collective::Group& group, Runnable& runnable);
  void run_alltoall(const collective::Group& group, Runnable& runnable);
  void run_reducescatter(const collective::Group& group, Runnable& runnable);
  void run_transfer(const collective::Group& group, Runnable& runnable);
  // A bucket begins and ends, for events and statistics.
  Event begin_bucket(const collective::Group& group, const std::vector<Runnable*>& bucket);
  void end_bucket(Event event, const std::vector<Runnable*>& bucket);
  // Numbers planned buckets, and tells of what was agreed.
  void number_buckets(const std::vector<std::vector<size_t>>& plan, std::vector<Runnable>& runnables);
  std::unique_ptr<Pending> take_reported(Membership& membership, const std::string& name);
  void complete(std::unique_ptr<Pending> pending, base::Code code, const std::string& error, int lost_rank);
  void announce_completions();
  void record(Phase phase, const Pending& pending, uint32_t algorithm);
  // The world is over: fails everything and lets submit() say why.
  void end_world(const base::Error& why);

  const EngineSettings settings_;
  Completions completions_;
  Events events_;

  // --- shared between user threads and the engine thread
  mutable base::Mutex mutex_;
  base::Condition thread_ended_;
  std::vector<std::unique_ptr<Pending>> queue_ GUARDED_BY(mutex_);
  std::map<uint32_t, collective::Group> groups_ GUARDED_BY(mutex_);  // all of the world, whether a member or not
  std::unordered_set<uint32_t> closing_groups_ GUARDED_BY(mutex_);   // being removed: no new requests
  std::optional<base::Error> ended_ GUARDED_BY(mutex_);              // why the world is over
  bool leaving_ GUARDED_BY(mutex_) = false;
  bool joining_ GUARDED_BY(mutex_) = false;  // a join is on its way
  bool thread_running_ GUARDED_BY(mutex_) = false;
  Stats stats_ GUARDED_BY(mutex_);
  base::Condition question_changed_;
  uint64_t question_ GUARDED_BY(mutex_) = 0;        // the last one that came; 0: none
  uint64_t question_taken_ GUARDED_BY(mutex_) = 0;  // the last one that wait_question() gave
  std::vector<Answer> answers_ GUARDED_BY(mutex_);  // not sent yet

  // --- written by enter() and stop_thread() only, while no engine thread runs
  std::unique_ptr<transport::Mesh> mesh_;
  transport::Arena* arena_ = nullptr;
  std::thread thread_;

  // --- the engine thread's alone
  std::unique_ptr<transport::Pump> pump_;
  std::unique_ptr<backend::Native> backend_;  // outlives the thread: others may still read its staging
  std::unique_ptr<Coordinator> coordinator_;  // rank 0 only, as is the next
  std::unique_ptr<StallInspector> inspector_;
  std::map<uint32_t, Membership> memberships_;
  std::unique_ptr<Pending> join_;
  struct LastRequest {
    Kind kind = Kind::kBarrier;
    uint32_t group = 0;
    std::string name;  // empty: there was none in this world
    int64_t submitted_ns = 0;
  } last_request_;
  int64_t round_trip_ns_ = 0;  // from a report to the decision that follows at once; an average, 0 if not known
  std::vector<std::shared_ptr<Completion>> finished_;  // not yet announced
  std::vector<std::unique_ptr<Pending>> unfinished_;   // agreed on, but the world broke before they ran
  int64_t fusion_threshold_ = 0;
  uint32_t decisions_ = 0;
  uint32_t buckets_ = 0;
  bool reported_leaving_ = false;
  bool world_over_ = false;
  bool everyone_finished_ = false;
};

}  // namespace farandole::engine
