// This worker's part in agreement, in one world: it reports what is ready towards rank 0, obeys rank 0's decisions in
// their order, and has what was agreed run. On rank 0 it also makes the decisions (see coordinator.h); on other ranks
// with children it passes on what it hears, up and down (see agreement_tree.h).
//
// Guarantees: decisions are obeyed in the order of their numbers, each once (agreement_core.h, which has what agreement
// is without threads and messages). When the world ends, in good order or by end_world(), every request that was taken
// up is completed. After that it does nothing any more.
//
// Threads: for the thread with the progress lock.
//
// It has more methods than most classes: one for each step of a turn and for each type of decision, all of which move
// the one number of the next decision on. What has state of its own is an object of its own: what was reported, the
// fast path, the runner of buckets.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/agreement_core.h"
#include "engine/arrivals.h"
#include "engine/bucket_runner.h"
#include "engine/fast_path.h"
#include "engine/formations.h"
#include "engine/messages.h"
#include "engine/name_queue.h"
#include "engine/outcomes.h"
#include "engine/pending.h"
#include "engine/recorder.h"
#include "engine/settings.h"
#include "engine/stall.h"
#include "engine/stall_query.h"
#include "engine/submissions.h"
#include "engine/tuning_driver.h"
#include "transport/arena.h"
#include "transport/frame_multiplexer.h"
#include "transport/mesh.h"

namespace farandole::engine {

class AgreementClient {
 public:
  // What it works with and does not own. All of these outlive it, but for what belongs to the world (the mesh, the
  // frames), which outlives its last call.
  struct Parts {
    const EngineSettings& settings;
    Submissions& submissions;
    Recorder& recorder;
    Outcomes& outcomes;
    TuningDriver& tuning;
    StallQueries& stall_queries;
    transport::Mesh& mesh;
    transport::Arena& arena;
    transport::FrameMultiplexer& frames;
    const backend::GpuParts& gpu;
  };
  AgreementClient(const Parts& parts, const collective::Group& world);

  // Rank 0: issues the first decision.
  void begin();
  bool has_work() const;
  // Reports, receives, obeys: all that can be done without waiting for a message. Throws the world's error.
  void take_turn(transport::Notify notify);
  // A worker may sleep while its request is on the fast path, but not for ever, so that rank 0 learns who waits for
  // whom: until this time, by the clock of base::now_ns(); 0: nothing is on the fast path.
  int64_t fast_path_ends() const noexcept;
  // What a thread that has nothing to do sleeps for.
  transport::Sleep sleeps_for() const noexcept;
  // From now on nothing is there.
  void end_fast_path();
  // When to look for stalls or at GPUs next, which signal nothing; 0: there is nothing to look for.
  int64_t next_alarm();
  // Whether something is on its way from a GPU, or to one: has_work() sees when it has come.
  bool watches_gpus() const noexcept {
    return !arrivals_.empty() || parts_.outcomes.has_launched() || (formations_ && formations_->is_forming());
  }
  // Does what it is time for: passes on what it has held back, and on rank 0 looks for ranks that others wait for.
  void act_on_alarm();

  // The number of the decision that it waits for.
  uint32_t next_number() const noexcept { return core_.next_number(); }
  bool is_over() const noexcept { return is_over_; }
  // Says that this rank has done everything, and waits for a moment until all have.
  void wait_for_everyone();
  // The world is over: fails everything and lets submit() say why.
  void end_world(const base::Error& why, bool certain);
  // The world was revoked, after the last turn.
  void revoke() noexcept;

 private:
  int64_t next_stall_alarm();
  void inspect_stalls();

  // --- to rank 0
  void report_new_requests(transport::Notify notify);
  void send_ready(Ready ready, transport::Notify notify);
  // Takes the request if it may take the fast path.
  bool try_fast_path(std::unique_ptr<Pending>& pending);
  void settle_fast_path(transport::Notify notify);
  void run_fast_path();
  // The slow path, for what was announced in vain.
  void report_fast_path(transport::Notify notify);

  // Counts what ranks of the subtree have ready.
  void count(const Report& report);
  // Tells the parent what it has not heard and is to hear now.
  void pass_up();

  // --- rank 0
  void decide();
  void issue(Decision decision);

  // --- from rank 0
  // Takes what has come, passes on what is for others, and obeys.
  void receive_messages();
  // Returns the decisions for this rank. Others hear of theirs, and what children say is counted.
  std::vector<Decision> take_messages();
  void pass_down(const Decision& decision);
  // A decision that came in a message: first what was agreed on before it without one.
  void obey_in_order(const Decision& decision);
  void obey(const Decision& decision);
  void apply_initial_config(const Decision& decision);
  void obey_run(const Decision& decision);
  void obey_formation(const Decision& decision);
  // What is to be run. What else was taken has happened: groups have changed, and what was refused has failed.
  std::vector<Runnable> take_decided(const Decision& decision);
  void fail_refused(AgreementCore::Taken::Refused refused);
  // Others wait for this rank: says what it asked for last, and passes the query on to the program.
  void receive_stall_query(uint64_t query);
  std::string describe_last_request() const;

  const Parts parts_;
  const int rank_;
  NameQueue names_;
  Arrivals arrivals_;
  AgreementCore core_;
  FastPath fast_path_;
  std::optional<StallInspector> inspector_;  // rank 0 only
  // These two exist once the initial config has come.
  std::unique_ptr<BucketRunner> runner_;
  std::optional<Formations> formations_;
  struct LastRequest {
    Kind kind = Kind::kBarrier;
    uint32_t group = 0;
    std::string name;  // empty: there was none in this world
    int64_t submitted_ns = 0;
  } last_request_;
  std::vector<std::unique_ptr<Pending>> unfinished_;  // agreed on, but the world broke before they ran
  bool reported_leaving_ = false;
  bool is_over_ = false;
  bool everyone_finished_ = false;
};

}  // namespace farandole::engine
