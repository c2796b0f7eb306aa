// The engine of one worker: queue -> agree -> fuse -> run.
//
// User threads submit() requests, which checks them and puts them on a queue (submissions.h), and wait for their
// handles. Everything else is done by the thread that holds the progress lock (progress_lock.h), the engine thread or a
// user thread that waits: it takes part in agreement (agreement_client.h) and runs buckets (bucket_runner.h) one after
// the other. When there is nothing to do, the engine thread sleeps, without the lock. This class manages the threads:
// which one makes progress, when the engine thread sleeps, and what wakes it.
//
// A world ends once: because a worker was lost (the mesh's WorldStatus is revoked), because one left in good order, or
// because leave() was called here. From then on every pending and later request fails with the one error that says
// why, until the engine enters the next world.
//
// It has more methods than most classes, because it is the only entrance to all of its parts: half of them pass a call
// on.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/mutex.h"
#include "engine/agreement_client.h"
#include "engine/completion.h"
#include "engine/events.h"
#include "engine/outcomes.h"
#include "engine/pending.h"
#include "engine/progress_lock.h"
#include "engine/recorder.h"
#include "engine/settings.h"
#include "engine/stall_query.h"
#include "engine/submissions.h"
#include "engine/tuning_driver.h"
#include "transport/arena.h"
#include "transport/frame_multiplexer.h"
#include "transport/mesh.h"

namespace farandole::engine {

enum class Waited : uint8_t { kDone, kTimeout, kUnknown };  // the last: one of the handles does not exist

// Returns the native backend's algorithm for a tensor of this size in bytes in a group with this topology. `wanted` as
// in collective/algorithm_table.h. Throws Error(kInvalidArgument) for requests that need none.
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
  // Leaves in good order, or after the deadline in any case. Afterwards the engine is in no world, and all callbacks of
  // its requests have returned, as after abandon().
  void leave(const base::Deadline& deadline);
  // Ends the world at once, for everyone in it, and leaves it.
  void abandon(const transport::Cause& cause);
  // Ends the world at once, for everyone in it; the engine stays in it, with every request failing.
  void revoke(const transport::Cause& cause);
  // Throws the error with which the world ended, if it has; kInvalidArgument if the engine was never in one.
  void check_health() const { submissions_.check_health(); }
  // The ending of the world that the engine is in, or was in last; nothing while it lives. It is known before requests
  // fail.
  std::optional<Ending> ending() const { return submissions_.ending(); }

  // Submits all or none. Throws Error(kInvalidArgument), or the error that ended the world. A caller that promises to
  // wait() for them at once lets the engine thread sleep.
  std::vector<Handle> submit(std::vector<Request> requests, bool waits_at_once = false) {
    return submissions_.submit(std::move(requests), waits_at_once);
  }
  // Waits until all of these are done, at most until the deadline, or a little longer until this thread has finished
  // the engine's work that it has begun meanwhile. When all are done, `failed` becomes the first one that ended with an
  // error, or null. In a callback, which must not wait: throws Error(kInvalidArgument) unless all are done.
  Waited wait(std::span<const Handle> handles, const base::Deadline& deadline,
              std::shared_ptr<const Completion>* failed = nullptr) {
    return wait(handles, Progress::kDone, deadline, failed);
  }
  // The same until all are launched; from then on this stream of a GPU waits for their results.
  Waited wait_on(std::span<const Handle> handles, device::Ordinal device, device::Stream stream,
                 const base::Deadline& deadline, std::shared_ptr<const Completion>* failed = nullptr);
  // Copies the rows that a request has received in the memory of a GPU to `target`, in this stream of this GPU, once.
  // False: there are none.
  bool take(Handle handle, void* target, device::Ordinal device, device::Stream stream);
  // Fills memory of a GPU with zeros, in this stream of it.
  void clear(void* memory, size_t bytes, device::Ordinal device, device::Stream stream);
  Completions& completions() noexcept { return completions_; }
  // 0 when there is no such group.
  size_t size_of_group(uint32_t group) const { return submissions_.size_of_group(group); }
  // The ranks of a group in ascending order; empty when there is no such group.
  std::vector<int> ranks_of_group(uint32_t group) const { return submissions_.ranks_of_group(group); }

  Stats stats() const { return recorder_.stats(); }
  Events& events() noexcept { return recorder_.events(); }
  const EngineSettings& settings() const noexcept { return settings_; }
  // Sets the initial values, found by an earlier job, of worlds that are entered from now on, unless the settings give
  // others.
  void keep(const collective::Knobs& knobs) { tuning_.keep(knobs); }
  // Rank 0 knows; on others it is off, and only the knobs in use are known.
  TuningReport tuning() const { return tuning_.report(); }
  // Returns the algorithm that would run a tensor of this size in bytes now. Throws Error(kInvalidArgument) if there is
  // no such group, or no algorithm for this kind.
  collective::Choice choose(Kind kind, ReduceOp op, uint32_t group, size_t bytes) const;

  // Waits until other ranks, which wait for this one, ask what it is doing. Returns 1 if they do, 0 if the deadline has
  // passed, and -1 if there is no world, or none any more.
  int wait_stall_query(const base::Deadline& deadline, uint64_t& query) { return stall_queries_.wait(deadline, query); }
  // Answers the ranks that have asked what the program is doing.
  void answer_stall_query(uint64_t query, std::string text);

 private:
  // --- any thread
  void stop_thread();
  // The outcome of an attempt to make progress. kNothingHappened: the requests are done, or nothing has happened for a
  // while, so the engine thread goes on; kTryAgain: callbacks had to be called; kLockIsTaken: another thread makes
  // progress.
  enum class Helped : uint8_t { kNothingHappened, kTryAgain, kLockIsTaken };
  Waited wait(std::span<const Handle> handles, Progress progress, const base::Deadline& deadline,
              std::shared_ptr<const Completion>* failed);
  // Makes progress until these requests have reached that state, or nothing happens for a while, at most until the
  // deadline.
  Helped help(const Completions::Awaited& awaited, Progress progress, const base::Deadline& deadline);
  // Returns whether there may be something to do, after a sleep if one is worthwhile: a request on the fast path wakes
  // the thread that sleeps with the progress lock directly, without going through the engine thread.
  bool look_or_sleep(const base::Deadline& deadline);
  bool look(const base::Deadline& deadline);

  // --- engine thread
  void thread_main();
  void break_off(const transport::Cause& cause);
  void live();
  void wait_for_work();
  void sleep_without_progress_lock(int64_t alarm_ns);
  // Sleeps until something signals, or at most until `sleeps_until_ns_`.
  void sleep(std::vector<pollfd> polled);
  // Runs the callbacks; the caller does not hold the progress lock.
  void run_callbacks();

  // --- with the progress lock
  void release_progress();
  // The engine thread gets it back. Throws the error that ended a user thread's turn meanwhile, if any.
  void retake_progress();
  // False: the engine thread is needed.
  bool prepare_sleep_after_helping();
  // Lets the engine thread, which sleeps, sleep on until something is due again: what was due first when it fell asleep
  // is mostly done by now. False: it would miss something, and must be woken.
  bool extend_sleep();

  const EngineSettings settings_;
  device::Gpus gpus_;
  const backend::GpuParts gpu_parts_{gpus_, settings_.nccl_library, settings_.elastic, settings_.gpu_patience};
  Completions completions_;
  Recorder recorder_;
  TuningDriver tuning_{settings_};
  Outcomes outcomes_{completions_, recorder_, tuning_};
  StallQueries stall_queries_;
  Submissions submissions_{completions_, settings_.backends, gpus_};

  base::Mutex mutex_;
  base::Condition thread_ended_;
  bool thread_running_ GUARDED_BY(mutex_) = false;

  // --- written by enter() and stop_thread() only, while no engine thread runs
  std::unique_ptr<transport::Mesh> mesh_;
  transport::Arena* arena_ = nullptr;
  std::thread thread_;

  // The engine thread calls callbacks: it cannot take over from user threads that wait.
  std::atomic<bool> engine_calls_back_ = false;
  // Until when the engine thread sleeps at most. Written with the progress lock, read without it.
  std::atomic<int64_t> sleeps_until_ns_ = 0;

  // --- read and written with the progress lock only
  ProgressLock progress_lock_;
  std::exception_ptr failure_;    // the error that ended a user thread's turn; it ends the engine thread
  std::vector<pollfd> slept_on_;  // what the engine thread sleeps on
  transport::PollHeuristic poll_heuristic_;
  std::unique_ptr<transport::FrameMultiplexer> frames_;
  // The agreement of the world that the engine is in, or was in last: others may still read what its backends have
  // staged.
  std::unique_ptr<AgreementClient> agreement_;
};

}  // namespace farandole::engine
