// The engine of one worker: queue -> agree -> fuse -> run.
//
// User threads submit() requests, which checks them and puts them on a queue, and wait for their handles. Everything
// else is done by the thread that holds the progress lock (see progress_lock.h), the engine thread or a user thread
// that waits: it reports to rank 0 what is ready, obeys its decisions in order, and runs buckets one after the other.
// When there is nothing to do the engine thread sleeps, without the lock.
//
// A world ends once: because a worker was lost (the mesh's WorldStatus is revoked), because one left in good order, or
// because leave() was called here. From then on every pending and later request fails with the one error that says
// why, until the engine enters the next world.
#pragma once

#include <poll.h>

#include <array>
#include <cstdint>
#include <exception>
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
#include "engine/completion.h"
#include "engine/coordinator.h"
#include "engine/events.h"
#include "engine/progress_lock.h"
#include "engine/request.h"
#include "engine/response_cache.h"
#include "engine/shm_agreement.h"
#include "engine/stall.h"
#include "engine/tuner.h"
#include "engine/wake_heuristic.h"
#include "transport/arena.h"
#include "transport/frame_multiplexer.h"
#include "transport/mesh.h"

namespace farandole::engine {

struct EngineSettings {
  collective::Knobs knobs;                            // rank 0's count for all, as do the next three
  std::vector<std::string> fixed_knobs;               // names of those that were set: they are neither tuned nor kept
  uint64_t piece_bytes = uint64_t{3} << 19;           // of staging, which has transport::kWindows of them
  std::string algorithm;                              // a name from the table, or empty
  int64_t spin_ns = transport::WaitPolicy{}.spin_ns;  // how long a wait looks before it sleeps
  // Some ranks wait for others: when rank 0 warns, and when it ends the world. 0: never.
  double stall_warning_seconds = 60;
  double stall_shutdown_seconds = 0;
  bool autotune = false;  // rank 0's counts
  TunerSettings tuner;
};

// How far autotuning has come.
struct TuningReport {
  bool on = false;
  bool done = false;
  bool found = false;       // knobs that are worth keeping
  double gain = 1;          // times the speed of the defaults
  collective::Knobs knobs;  // in use
  std::vector<Tuner::Sample> samples;
  std::string summary;
};

struct Request {
  uint32_t group = 0;
  std::string name;
  Signature signature;
  const void* input = nullptr;
  void* output = nullptr;
  std::vector<int64_t> splits{};  // alltoall: rows for each member; empty: equal parts
  float* residual = nullptr;      // compressed allreduce: what was not sent before, and then what is not sent now
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
  uint64_t fast_path_rounds = 0;  // of these rounds, those without messages
  uint64_t sleeps = 0;
  std::array<KindStats, kKinds> kinds{};
};

// How the last world ended.
struct Ending {
  int lost_rank = -1;    // -1: nobody in particular
  bool certain = false;  // that rank has ended, left or given up; otherwise it is only suspected, and may live
};

enum class Waited : uint8_t { kDone, kTimeout, kUnknown };  // the last: one of the handles does not exist

// Which algorithm runs a tensor of so many bytes in a group that lies so on hosts; `wanted` as in collective/table.h.
// Throws Error(kInvalidArgument) for what needs none.
collective::Choice choose_for(Kind kind, ReduceOp op, const collective::Topology& topology, size_t bytes,
                              const collective::Knobs& knobs, const std::string& wanted);

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
  // Of the world that the engine is in, or was in last; nothing while it lives. Requests fail after this is known.
  std::optional<Ending> ending() const;

  // Submits all or none. Throws Error(kInvalidArgument), or the error that ended the world. Who promises to wait() for
  // them at once lets the engine thread sleep.
  std::vector<Handle> submit(std::vector<Request> requests, bool waits_at_once = false);
  // Waits until all of these are done, at most until the deadline, or until what this thread has begun meanwhile in the
  // engine's place is done. When all are done, `failed` becomes the first one that ended with an error, or null.
  Waited wait(std::span<const Handle> handles, const base::Deadline& deadline,
              std::shared_ptr<const Completion>* failed = nullptr);
  Completions& completions() noexcept { return completions_; }
  // 0 when there is no such group.
  size_t size_of_group(uint32_t group) const;

  Stats stats() const;
  const EngineSettings& settings() const noexcept { return settings_; }
  // What worlds that are entered from now on begin with, where the settings do not say: found by an earlier job.
  void keep(const collective::Knobs& knobs);
  // Rank 0 knows; on others it is off, and only the knobs in use are known.
  TuningReport tuning() const;
  // Which algorithm runs a tensor of so many bytes now. Throws Error(kInvalidArgument) when there is no such group, or
  // no algorithm for this kind.
  collective::Choice choose(Kind kind, ReduceOp op, uint32_t group, size_t bytes) const;
  Events& events() noexcept { return events_; }

  // Waits until others, who wait for this rank, ask what it is doing. 1: they do, 0: the deadline has passed, -1: there
  // is no world, or none any more.
  int wait_stall_query(const base::Deadline& deadline, uint64_t& query);
  // What the program is doing, for those who asked.
  void answer_stall_query(uint64_t query, std::string text);

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
    bool is_waited_for = false;  // by a user, from the start
    bool is_staged = false;      // see backend::Native::stage
  };
  // What the engine thread knows of a group that this worker is a member of.
  struct Membership {
    collective::Group group;
    ResponseCache cache;
    // What rank 0 has been told of: in full, by name, and as a bit, by that.
    std::unordered_map<std::string, std::unique_ptr<Pending>> reported;
    std::vector<std::unique_ptr<Pending>> reported_bits;
    std::vector<uint32_t> name_numbers;  // in events, by bit

    bool awaits(const std::string& name) const;
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
  void notify();
  // A user comes to wait for these.
  void come_for(std::span<const Handle> handles);
  // Does the engine's work until these are done, or nothing happens for a while; false if the progress lock is taken.
  bool help(const Completions::Awaited& awaited);

  // --- engine thread
  void thread_main();
  void break_off(const transport::Cause& cause);
  void live();
  void wait_for_work();
  void sleep_without_progress_lock();
  // Until something rings, or at most until then.
  void sleep(std::vector<pollfd> polled, int64_t until_ns);
  // Whether it is to be a nap.
  bool begin_nap();
  // Whether a request lies there whose user was expected to come, and did not.
  bool is_left_alone();
  void wait_for_everyone();

  // --- with the progress lock
  void release_progress();
  bool has_work();
  // When to look for stalls next; 0: there is nothing to look for.
  int64_t next_alarm();
  // False: the engine thread is needed.
  bool lie_down_after_helping();
  // Whether the sleeping engine thread would miss something that must wake it.
  bool outgrew_sleep();
  void take_turn(transport::Notify notify);
  void report_new_requests(transport::Notify notify);
  void report(std::unique_ptr<Pending> pending, Ready& ready);
  // The bit that stands for a request now.
  uint32_t bit_of(const Request& request) const;
  // A request that will be spoken of by its bit.
  void expect(std::unique_ptr<Pending> pending, uint32_t bit);
  void report_in_full(Pending& pending, Ready& ready);
  void send_ready(const Ready& ready, transport::Notify notify);
  void issue(Decision decision);
  // A decision that came in a message: first what was agreed on before it without one.
  void obey_in_order(const Decision& decision);
  void receive_messages();
  // Rank 0: counts what a rank has ready.
  void count(int rank, const Ready& ready);
  void obey(const Decision& decision);
  void apply_initial_config(const Decision& decision);
  void obey_run(const Decision& decision);
  void obey_tune(const Decision& decision);
  void add_group(const Decision::Agreed& agreed);
  void remove_group(uint32_t id);
  // `bit` is the one that the decision names it by, if it does.
  Runnable take_agreed(Membership& membership, const Decision::Agreed& agreed, uint32_t bit, bool absent);
  std::unique_ptr<Pending> absent_part(const Membership& membership, const Decision::Agreed& agreed) const;
  std::unique_ptr<Pending> take_join();
  void fail_refused(Membership& membership, const Decision::Refused& refused);
  // Tells apart, for statistics, how long these waited for others and how long for the word of it.
  void measure_agreement(const Decision& decision, std::vector<Runnable>& runnables);
  // Rank 0: looks for ranks that others wait for.
  void inspect_stalls();
  // Rank 0: the knobs that a world begins with, and a tuner if they are to be tuned.
  collective::Knobs begin_tuning();
  // Rank 0: a request is done; the tuner may want other knobs.
  void measure_for_tuning(const Pending& pending);
  void tune();
  void report_tuning();
  // Others wait for this rank: says what it asked for last, and passes the query on to the program.
  void receive_stall_query(uint64_t query);

  // --- with the progress lock: agreement without messages (see shm_agreement.h)
  // Takes the request if it may go this way.
  bool try_fast_path(std::unique_ptr<Pending>& pending);
  // What can be done for it before all agree.
  void stage(Pending& pending);
  // What has become of the request on the fast path, if there is one.
  ShmAgreement::State fast_path_state() const;
  // Whether it is to be run or reported now.
  bool fast_path_is_settled() const;
  void settle_fast_path(transport::Notify notify);
  void run_fast_path();
  // The slow path, for what was announced in vain.
  void report_fast_path(transport::Notify notify);
  // Before this worker sleeps.
  void end_fast_path();

  // --- with the progress lock: what was agreed
  void run_all(const collective::Group& group, std::vector<Runnable> runnables);
  collective::Choice choose_allreduce(const collective::Group& group, const Signature& signature) const;
  void run_bucket(const collective::Group& group, const std::vector<Runnable*>& bucket);
  void run_allreduce(const collective::Group& group, const std::vector<Runnable*>& bucket);
  void run_compressed(const collective::Group& group, const std::vector<Runnable*>& bucket);
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
  std::unique_ptr<Pending> take_reported(Membership& membership, const std::string& name, uint32_t bit);
  void complete(std::unique_ptr<Pending> pending, base::Code code, const std::string& error, int lost_rank);
  void announce_completions();
  void record(Phase phase, const Pending& pending, uint32_t algorithm);
  // The world is over: fails everything and lets submit() say why.
  void end_world(const base::Error& why, bool certain);

  const EngineSettings settings_;
  Completions completions_;
  Events events_;

  // --- shared between user threads and the engine thread
  mutable base::Mutex mutex_;
  base::Condition thread_ended_;
  std::vector<std::unique_ptr<Pending>> queue_ GUARDED_BY(mutex_);
  WakeHeuristic wake_heuristic_ GUARDED_BY(mutex_);
  // Whether the engine thread, when it slept last, did so only to nap. Nobody may leave a request to it unrung
  // otherwise.
  bool naps_ GUARDED_BY(mutex_) = false;
  std::map<uint32_t, collective::Group> groups_ GUARDED_BY(mutex_);  // all of the world, whether a member or not
  std::unordered_set<uint32_t> closing_groups_ GUARDED_BY(mutex_);   // being removed: no new requests
  std::optional<base::Error> ended_ GUARDED_BY(mutex_);              // why the world is over
  std::optional<Ending> ending_ GUARDED_BY(mutex_);
  bool leaving_ GUARDED_BY(mutex_) = false;
  bool joining_ GUARDED_BY(mutex_) = false;  // a join is on its way
  bool thread_running_ GUARDED_BY(mutex_) = false;
  Stats stats_ GUARDED_BY(mutex_);
  base::Condition stall_query_changed_;
  uint64_t stall_query_ GUARDED_BY(mutex_) = 0;          // the last one that came; 0: none
  uint64_t stall_query_taken_ GUARDED_BY(mutex_) = 0;    // the last one that wait_stall_query() gave
  std::vector<StallAnswer> answers_ GUARDED_BY(mutex_);  // not sent yet
  std::optional<collective::Knobs> kept_knobs_ GUARDED_BY(mutex_);
  collective::Knobs knobs_ GUARDED_BY(mutex_);  // as last decided, as is the next
  std::string algorithm_ GUARDED_BY(mutex_);
  TuningReport tuning_report_ GUARDED_BY(mutex_);

  // --- written by enter() and stop_thread() only, while no engine thread runs
  std::unique_ptr<transport::Mesh> mesh_;
  transport::Arena* arena_ = nullptr;
  std::thread thread_;

  // --- read and written with the progress lock only
  ProgressLock progress_lock_;
  std::exception_ptr failure_;    // what ended a user thread's turn; the engine thread dies of it
  std::vector<pollfd> slept_on_;  // what the engine thread sleeps on
  int64_t sleeps_until_ns_ = 0;   // and at most until when
  std::unique_ptr<transport::FrameMultiplexer> frames_;
  std::unique_ptr<backend::Native> backend_;  // outlives the thread: others may still read its staging
  std::unique_ptr<Coordinator> coordinator_;  // rank 0 only, as is the next
  std::unique_ptr<StallInspector> inspector_;
  struct Tuning {
    Tuner tuner;
    StepMeter meter;
  };
  std::unique_ptr<Tuning> tuning_;  // null: off, or done
  bool tuning_changed_ = false;     // there is news of it
  std::map<uint32_t, Membership> memberships_;
  std::unique_ptr<Pending> join_;
  int in_flight_ = 0;  // requests of this worker that the engine has taken up
  std::optional<ShmAgreement> shm_agreement_;
  struct FastPathRequest {
    std::unique_ptr<Pending> pending;
    uint32_t bit = kNoBit;
    uint32_t number = 0;
  } fast_path_;  // no pending: there is none
  struct LastRequest {
    Kind kind = Kind::kBarrier;
    uint32_t group = 0;
    std::string name;  // empty: there was none in this world
    int64_t submitted_ns = 0;
  } last_request_;
  int64_t round_trip_ns_ = 0;  // from a report to the decision that follows at once; an average, 0 if not known
  std::vector<std::shared_ptr<Completion>> finished_;  // not yet announced
  std::vector<std::unique_ptr<Pending>> unfinished_;   // agreed on, but the world broke before they ran
  uint32_t decisions_ = 0;                             // the number of the last one
  uint32_t buckets_ = 0;
  bool reported_leaving_ = false;
  bool world_over_ = false;
  bool everyone_finished_ = false;
};

}  // namespace farandole::engine
