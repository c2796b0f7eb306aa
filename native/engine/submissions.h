// The users' side of the engine: what they submit, the groups that they can submit to, and why the world is over.
//
// Guarantees: a request is taken or refused as a whole before submit() returns, together with those of the same call.
// From the end of a world until the next one every call is refused with the error that says why it ended. A request
// that was taken comes out once: of drain(), or of end().
//
// Threads: any thread. The engine's doorbell is signalled under the mutex, while the world lives.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "backend/backend.h"
#include "base/error.h"
#include "base/mutex.h"
#include "collective/group.h"
#include "engine/completion.h"
#include "engine/pending.h"
#include "engine/wake_heuristic.h"
#include "transport/mesh.h"

namespace farandole::engine {

// The end of the last world.
struct Ending {
  int lost_rank = -1;    // -1: none in particular
  bool certain = false;  // that rank has ended, left or given up; otherwise it is only suspected, and may live
};

// It has more methods and more fields than most classes: one mutex guards all that a request is checked against,
// because a call is taken or refused as a whole.
class Submissions {
 public:
  // All of these must outlive this.
  Submissions(Completions& completions, std::span<const backend::Row* const> backends, device::Gpus& gpus);

  // --- a world
  // `mesh` is used until end_stay().
  void begin_world(transport::Mesh& mesh, const collective::Group& world);
  // The world is over, and this is why; the first call counts. Gives what was not drained.
  std::vector<std::unique_ptr<Pending>> end_world(const base::Error& why, bool certain);
  // The engine has left its world.
  void end_stay();
  // Throws the error with which the world ended, if it has.
  void check_health() const;
  std::optional<Ending> ending() const;
  // Asks for the world to end in good order.
  void leave();

  // --- requests
  // Does the work of Engine::submit().
  std::vector<Handle> submit(std::vector<Request> requests, bool waits_at_once);
  // A user thread begins to wait for these.
  void begin_wait(std::span<const Handle> handles);
  // Signals the doorbell, if there is a world.
  void notify();

  // --- for the thread with the progress lock
  struct Drained {
    std::vector<std::unique_ptr<Pending>> requests;
    bool leaving = false;
  };
  Drained drain();
  // Whether there are requests, or leave() was called when `knows_of_leaving` is false.
  bool has_any(bool knows_of_leaving) const noexcept { return has_queued_ || (leaving_ && !knows_of_leaving); }
  void add_group(const collective::Group& group);
  void remove_group(uint32_t id);
  // It was to be removed, and is not.
  void keep_group(uint32_t id);
  // All ranks have joined.
  void end_join();
  // Backends that have to be formed are formed in this group.
  void use_formed(uint32_t group);

  // --- for the engine thread
  // Whether it is to sleep for WakeHeuristic::kShortSleepMs at most.
  bool begin_short_sleep();
  // Whether a request waits for a user thread that was expected to wait for it, and did not.
  bool is_overdue();

  // --- groups
  size_t size_of_group(uint32_t group) const;             // 0: there is no such group
  std::vector<int> ranks_of_group(uint32_t group) const;  // empty: there is no such group
  // Where the members of a group lie. Throws as check_health(), and when there is no such group.
  collective::Topology topology_of(uint32_t group) const;

 private:
  // Which backend runs it. Throws Error(kInvalidArgument) when none does, and when the request must not be made.
  backend::Selection check(const Request& request) const REQUIRES(mutex_);
  // Checks the requests of a call, and takes their names. Admitted requests are then enqueued, or withdrawn from
  // completions_.
  struct Admitted {
    std::vector<std::unique_ptr<Pending>> requests;
    Completions::Opened opened;  // of these requests
    uint64_t world = 0;          // in which they were admitted
    size_t callbacks = 0;        // of these requests
  };
  Admitted admit(std::vector<Request> requests) REQUIRES(mutex_);
  // Throws when that world is over.
  void check_world(const Admitted& admitted) const REQUIRES(mutex_);
  // Begins the copies of the admitted requests' inputs on the GPUs.
  void begin_on_gpus(const Admitted& admitted);
  std::vector<Handle> submit_on_gpus(std::vector<Request> requests, bool waits_at_once);
  std::vector<Handle> enqueue(Admitted admitted, bool waits_at_once) REQUIRES(mutex_);
  std::string not_a_member(const Request& request, const collective::Group& group) const REQUIRES(mutex_);

  Completions& completions_;
  device::Gpus& gpus_;
  const std::span<const backend::Row* const> backends_;

  mutable base::Mutex mutex_;
  transport::Mesh* mesh_ GUARDED_BY(mutex_) = nullptr;
  uint64_t worlds_ GUARDED_BY(mutex_) = 0;  // how many have begun
  std::vector<std::unique_ptr<Pending>> queue_ GUARDED_BY(mutex_);
  std::atomic<bool> has_queued_ = false;  // whether `queue_` has any; written with the mutex only
  WakeHeuristic wake_heuristic_ GUARDED_BY(mutex_);
  // Whether the engine thread, when it slept last, did so for a short time only. Otherwise no request may be left to it
  // without a signal.
  bool sleeps_briefly_ GUARDED_BY(mutex_) = false;
  std::map<uint32_t, collective::Group> groups_ GUARDED_BY(mutex_);  // all of the world, whether a member or not
  std::unordered_set<uint32_t> closing_groups_ GUARDED_BY(mutex_);   // being removed: no new requests
  std::set<uint32_t> formed_ GUARDED_BY(mutex_);                     // groups in which such backends are formed
  std::optional<base::Error> ended_ GUARDED_BY(mutex_);              // why the world is over
  std::optional<Ending> ending_ GUARDED_BY(mutex_);
  std::atomic<bool> leaving_ = false;        // written with the mutex only
  bool joining_ GUARDED_BY(mutex_) = false;  // a join is on its way
};

}  // namespace farandole::engine
