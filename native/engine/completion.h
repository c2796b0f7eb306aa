// The outcomes of requests: one Completion per handle, the table of all handles of an engine, and the names in flight.
//
// A request of a GPU's tensor is launched before it is done: its result is on its way in a stream of the GPU, and who
// uses it in a stream that waits for that need not wait. Any other one is both at once.
//
// A name stays in flight until its request is launched and its user has seen that, so that two requests of one name
// which are made back to back are refused however fast the first one was: on another rank it may be slower. A user that
// never looks does not block a name for ever: a quarter of a second after the request was launched, it is free. A
// request that is made in turn takes no name here, and none is refused because of it (name_queue.h).
//
// A request may have a callback. It is called once, when the request is done, by the thread that makes progress, which
// holds neither a mutex nor the progress lock then. So finish() only lists the callbacks, and the engine calls
// run_callbacks() where it has released the progress lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mutex.h"
#include "device/gpu.h"

namespace farandole::engine {

using Handle = uint64_t;

// The progress of a request.
enum class Progress : uint8_t { kOpen, kLaunched, kDone };

struct Completion;
// Must not throw, and must not wait for the engine: see farandole_callback in capi/farandole.h.
using Callback = std::function<void(const Completion& completion)>;

// The outcome of a request.
struct Outcome {
  base::Code code = base::Code::kOk;
  std::string error;
  int lost_rank = -1;
};

// Data, sizes and mark are written by the engine thread before it is launched, and read by anyone after. The outcome is
// known when it is done: before that, see() says whether it has failed.
struct Completion : Outcome {
  // Written with the table's mutex, and after all that it says is there.
  std::atomic<Progress> progress = Progress::kOpen;
  base::Bytes data;                             // allgather: the gathered elements
  std::shared_ptr<device::Memory> device_data;  // instead of it, when it ran in the memory of a GPU
  std::vector<int64_t> sizes;                   // allgather: first dimensions by member; add group: the id
  device::MarkPointer mark;                     // of a launched one: after its result; otherwise null

  // The rest belongs to the table.
  Handle handle = 0;
  Callback callback;  // until it is done; null: there is none
  std::string key;    // the name in flight; empty: it takes none
  size_t key_hash = 0;
  int64_t launched_ns = 0;
  bool released = false;  // by the user
};

class Completions {
 public:
  using Opened = std::vector<std::shared_ptr<Completion>>;
  // Gives each of these a handle, or none: if the name of one is in flight, or comes twice, returns the index of it.
  // They are then withdrawn, or going to be done.
  std::optional<size_t> open(const Opened& opened);
  // Undoes open(), because the requests are refused after all. No caller has their handles yet.
  void withdraw(const Opened& opened);
  // So many callbacks of opened handles are going to be called: their requests will not be withdrawn any more.
  void expect_callbacks(size_t callbacks);
  // No request of before is in flight any more.
  void forget_names();
  // Null when there is no such handle.
  std::shared_ptr<const Completion> find(Handle handle) const;
  // What a request that is launched has received in the memory of a GPU, once.
  std::shared_ptr<device::Memory> take_device_data(Handle handle);
  // False when one of the handles does not exist; the others are released.
  bool release(std::span<const Handle> handles);

  // Makes it known that these are launched. The caller holds the progress lock.
  void launch(const std::vector<std::shared_ptr<Completion>>& launched);
  // Makes it known that these are done, and lists their callbacks. The caller holds the progress lock.
  struct Finished {
    std::shared_ptr<Completion> completion;
    Outcome outcome;
    int64_t at_ns;
  };
  void finish(std::span<Finished> finished);

  // Whether run_callbacks() has something to do.
  bool has_callbacks() const noexcept { return callbacks_listed_.load(std::memory_order_acquire); }
  // Calls the listed callbacks in the calling thread, which holds no lock. False: there were none.
  bool run_callbacks();
  // Waits until every callback that is expected has returned, in whichever thread. All of these are done or will be. A
  // call that is still being submitted is not waited for: a driver of a GPU may hang in it, and it will be refused.
  void wait_for_callbacks();
  // Whether the calling thread is inside a callback, of whichever engine.
  static bool in_callback() noexcept;

  // 1: launched or done, 0: not yet, -1: no such handle.
  int poll(Handle handle);
  using Awaited = std::vector<std::shared_ptr<Completion>>;
  // Nothing when one of these handles does not exist.
  std::optional<Awaited> find_all(std::span<const Handle> handles) const;
  static bool have_come(const Awaited& awaited, Progress progress) noexcept;
  // Their user has seen which of these are launched. Gives the first one that has failed so far, or null.
  std::shared_ptr<const Completion> see(const Awaited& awaited);
  // Waits until all of these have come so far or `stop()` says true, at most until the deadline. What changes `stop()`
  // is followed by nudge().
  void wait(const Awaited& awaited, Progress progress, const base::Deadline& deadline,
            const std::function<bool()>& stop);
  void nudge();

 private:
  // The name is free, if this is the request that holds it.
  void free_name(const std::shared_ptr<Completion>& completion) REQUIRES(mutex_);
  // Whether the name became this request's; it is not while another one of that name is in flight.
  bool take_name(const std::shared_ptr<Completion>& completion) REQUIRES(mutex_);
  void advance(const std::shared_ptr<Completion>& completion, Progress progress, int64_t now_ns) REQUIRES(mutex_);

  mutable base::Mutex mutex_;
  base::Condition changed_;
  struct Call {
    std::shared_ptr<const Completion> completion;
    Callback callback;
  };
  std::vector<Call> to_call_ GUARDED_BY(mutex_);
  std::atomic<bool> callbacks_listed_ = false;  // whether `to_call_` has any
  size_t uncalled_ GUARDED_BY(mutex_) = 0;      // callbacks that have not returned
  Handle last_ GUARDED_BY(mutex_) = 0;
  // A Completion's outcome until it is done, and the fields that belong to the table, are guarded by mutex_ too.
  std::unordered_map<Handle, std::shared_ptr<Completion>> table_ GUARDED_BY(mutex_);
  struct KeyHash {
    size_t operator()(const std::shared_ptr<Completion>& completion) const noexcept { return completion->key_hash; }
  };
  struct KeyEqual {
    bool operator()(const std::shared_ptr<Completion>& one, const std::shared_ptr<Completion>& other) const noexcept {
      return one == other || one->key == other->key;
    }
  };
  std::unordered_set<std::shared_ptr<Completion>, KeyHash, KeyEqual> names_ GUARDED_BY(mutex_);  // in flight
};

}  // namespace farandole::engine
