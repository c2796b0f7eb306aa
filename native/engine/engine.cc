#include "engine/engine.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <numeric>
#include <utility>

#include "engine/fusion.h"

namespace farandole::engine {
namespace {

using base::Code;
using base::Error;
using collective::Group;
using transport::Cause;
using transport::Sign;

// How long goodbyes and last decisions may take to get out.
constexpr double kPartingSeconds = 1.0;
// While every worker of a host has a core for itself, it pays to look for this long before sleeping.
constexpr int64_t kSpinNs = 20'000;

std::string key_of(uint32_t group, const std::string& name) { return std::to_string(group) + "/" + name; }

int64_t spin_for(int workers_here) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const int usable = ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
  return workers_here > usable ? 0 : kSpinNs;
}

int workers_on_my_host(const transport::Mesh& mesh) {
  const std::vector<int>& hosts = mesh.hosts();
  return static_cast<int>(std::ranges::count(hosts, hosts[static_cast<size_t>(mesh.rank())]));
}

// Requests that may share a bucket have equal keys: same type, operation, factors, algorithm.
uint64_t fusion_key(const Signature& signature, uint32_t algorithm) {
  uint64_t key = static_cast<uint64_t>(signature.dtype) | static_cast<uint64_t>(signature.op) << 8 |
                 static_cast<uint64_t>(algorithm) << 16;
  for (const double factor : {signature.prescale, signature.postscale}) {
    key = key * 0x9e3779b97f4a7c15U ^ std::bit_cast<uint64_t>(factor);
  }
  return key;
}

reduce::Op reduction_of(ReduceOp op) {
  return op == ReduceOp::kAverage ? reduce::Op::kSum : static_cast<reduce::Op>(op);
}

}  // namespace

Engine::Engine(EngineSettings settings) : settings_(std::move(settings)) {
  ended_ = Error(Code::kInvalidArgument, "the engine is in no world; call init() first");
}

Engine::~Engine() {
  if (mesh_ != nullptr) {
    abandon({mesh_->rank(), Sign::kRevoked,
             "rank " + std::to_string(mesh_->rank()) + " was lost: its engine was destroyed without leaving"});
  }
}

// --- any thread ----------------------------------------------------------------------------------------------------

void Engine::enter(std::unique_ptr<transport::Mesh> mesh, transport::Arena& arena) {
  mesh_ = std::move(mesh);
  arena_ = &arena;
  Group world;
  world.members.resize(static_cast<size_t>(mesh_->size()));
  std::iota(world.members.begin(), world.members.end(), 0);
  world.index = mesh_->rank();
  const int64_t spin_ns = settings_.spin_ns >= 0 ? settings_.spin_ns : spin_for(workers_on_my_host(*mesh_));
  pump_ = std::make_unique<transport::Pump>(*mesh_, transport::WaitPolicy{spin_ns});
  backend_.reset();  // of the last world, whose members have all left it by now: this mesh would not have formed
  coordinator_ = mesh_->rank() == 0 ? std::make_unique<Coordinator>(mesh_->size()) : nullptr;
  memberships_.clear();
  memberships_[0].group = world;
  decisions_ = 0;
  buckets_ = 0;
  reported_leaving_ = false;
  world_over_ = false;
  everyone_finished_ = false;
  {
    const std::lock_guard lock(mutex_);
    queue_.clear();
    in_flight_.clear();
    groups_.clear();
    groups_[0] = world;
    closing_groups_.clear();
    ended_.reset();
    leaving_ = false;
    stats_ = {};
    thread_running_ = true;
  }
  thread_ = std::thread([this] { thread_main(); });
}

void Engine::leave(const base::Deadline& deadline) {
  if (mesh_ == nullptr) {
    return;
  }
  {
    std::unique_lock lock(mutex_);
    leaving_ = true;
    mesh_->doorbell().ring();
    thread_ended_.wait_for(lock, std::chrono::nanoseconds(deadline.left_ns()), [this] { return !thread_running_; });
  }
  revoke({mesh_->rank(), Sign::kRevoked,
          "rank " + std::to_string(mesh_->rank()) + " was lost: it could not leave in good order in time"});
  stop_thread();
}

void Engine::abandon(const Cause& cause) {
  if (mesh_ == nullptr) {
    return;
  }
  revoke(cause);
  stop_thread();
}

void Engine::revoke(const Cause& cause) {
  {
    const std::lock_guard lock(mutex_);
    if (!thread_running_) {
      return;  // the world is over already, and so is this worker's part in it
    }
  }
  mesh_->fate().revoke(cause);
}

void Engine::stop_thread() {
  thread_.join();
  pump_.reset();
  mesh_.reset();
  const std::lock_guard lock(mutex_);
  ended_ = Error(Code::kInvalidArgument, "the engine has left its world; call init() first");
}

void Engine::check_health() const {
  const std::lock_guard lock(mutex_);
  if (ended_) {
    throw *ended_;
  }
}

Stats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::string Engine::not_a_member(const Request& request, const Group& group) const {
  return std::string(name_of(request.signature.kind)) + ": rank " + std::to_string(mesh_->rank()) +
         " is not a member of the provided process set (its ranks are " +
         format_shape(std::vector<int64_t>(group.members.begin(), group.members.end())) + ").";
}

void Engine::check(const Request& request) const {
  const auto refuse = [](const std::string& why) { throw Error(Code::kInvalidArgument, why); };
  const std::string kind = name_of(request.signature.kind);
  const auto found = groups_.find(request.group);
  if (found == groups_.end() || closing_groups_.contains(request.group)) {
    refuse(kind + ": the process set provided does not exist, or has not been registered.");
  }
  if (found->second.index < 0) {
    refuse(not_a_member(request, found->second));
  }
  if (in_flight_.contains(key_of(request.group, request.name))) {
    refuse("Requested to " + kind + " a tensor with the same name as another one that is still being processed: '" +
           request.name + "'. Wait for the first one, or give the second another name.");
  }
  if (request.signature.kind == Kind::kBroadcast && !found->second.contains(request.signature.root)) {
    refuse("broadcast received invalid root rank " + std::to_string(request.signature.root) +
           " for the provided process set, whose ranks are " +
           format_shape(std::vector<int64_t>(found->second.members.begin(), found->second.members.end())) + ".");
  }
  for (const int64_t dimension : request.signature.shape) {
    if (dimension < 0) {
      refuse(kind + ": a shape cannot have a negative dimension: " + format_shape(request.signature.shape) + ".");
    }
  }
  if (request.signature.kind == Kind::kAllgather && request.signature.shape.empty()) {
    refuse("allgather needs a tensor with at least one dimension: '" + request.name + "' has none.");
  }
}

std::vector<Handle> Engine::submit(std::vector<Request> requests) {
  std::vector<Handle> handles;
  const int64_t now = base::now_ns();
  const std::lock_guard lock(mutex_);
  if (ended_) {
    throw *ended_;
  }
  std::unordered_set<std::string> names;
  for (const Request& request : requests) {
    check(request);
    if (!names.insert(key_of(request.group, request.name)).second) {
      throw Error(Code::kInvalidArgument, "two requests of one submission have the same name: '" + request.name + "'.");
    }
  }
  in_flight_.merge(names);
  for (Request& request : requests) {
    if (request.signature.kind == Kind::kRemoveGroup) {
      closing_groups_.insert(static_cast<uint32_t>(request.signature.shape.at(0)));
    }
    auto pending = std::make_unique<Pending>();
    handles.push_back(completions_.open(pending->completion));
    pending->request = std::move(request);
    pending->submitted_ns = now;
    queue_.push_back(std::move(pending));
  }
  mesh_->doorbell().ring();
  return handles;
}

// --- engine thread: agreement -----------------------------------------------------------------------------------------

void Engine::thread_main() {
  try {
    live();
  } catch (const Error& error) {
    // If it is of our own making, nobody else knows yet.
    break_off({mesh_->rank(), Sign::kBroken, error.what()});
  } catch (const std::exception& error) {
    break_off({mesh_->rank(), Sign::kBroken,
               "rank " + std::to_string(mesh_->rank()) + " failed inside its engine: " + error.what()});
  }
  const std::lock_guard lock(mutex_);
  thread_running_ = false;
  thread_ended_.notify_all();
}

void Engine::break_off(const Cause& cause) {
  mesh_->fate().revoke(cause);
  // From here on our memory may be put to new use; who still reads it for this generation notices.
  mesh_->arena(mesh_->rank())->serve(transport::kNoGeneration);
  if (!world_over_) {
    end_world(mesh_->fate().error());
  }
}

void Engine::live() {
  if (coordinator_) {
    Decision charter;
    charter.type = Decision::Type::kCharter;
    charter.fusion_threshold = settings_.fusion_threshold;
    charter.half_bytes = settings_.half_bytes;
    charter.algorithm = settings_.algorithm;
    issue(charter);
  }
  while (!world_over_) {
    wait_for_work();
    mesh_->fate().throw_if_revoked();
    report_new_requests();
    receive_messages();
  }
  wait_for_everyone();
  mesh_->part();
}

// The world has ended in good order. Others may still be at work on what was agreed before, reading our memory: only
// when all have finished may it be put to new use.
void Engine::wait_for_everyone() {
  const auto deadline = base::Deadline::after_seconds(kPartingSeconds);
  Ready ready;
  ready.finished = true;
  send_ready(ready);
  receive_messages();
  while (!everyone_finished_ && !deadline.passed()) {
    pump_->wait([&] { return pump_->has_message() || deadline.passed(); });
    receive_messages();
  }
  pump_->flush_messages(deadline);
}

void Engine::wait_for_work() {
  const uint64_t slept = pump_->sleeps();
  pump_->wait([this] {
    if (pump_->has_message()) {
      return true;
    }
    if (backend_ == nullptr) {
      return false;  // the charter has not come yet: nothing can be reported
    }
    const std::lock_guard lock(mutex_);
    return !queue_.empty() || (leaving_ && !reported_leaving_);
  });
  if (pump_->sleeps() != slept) {
    Event woke;
    woke.time_ns = base::now_ns();
    woke.phase = Phase::kWoke;
    events_.record(woke);
    const std::lock_guard lock(mutex_);
    stats_.sleeps += pump_->sleeps() - slept;
  }
}

void Engine::report_new_requests() {
  if (backend_ == nullptr) {
    return;
  }
  std::vector<std::unique_ptr<Pending>> fresh;
  Ready ready;
  {
    const std::lock_guard lock(mutex_);
    fresh.swap(queue_);
    ready.leaving = leaving_ && !reported_leaving_;
  }
  reported_leaving_ |= ready.leaving;
  std::map<uint32_t, BitSet> known;
  for (std::unique_ptr<Pending>& pending : fresh) {
    pending->name_number = events_.number_of(pending->request.name);
    record(Phase::kSubmitted, *pending, kNone);
    const Request& request = pending->request;
    Membership& membership = memberships_.at(request.group);
    const uint32_t bit = membership.catalog.find(request.name, request.signature, membership.group.index);
    if (bit != kNoBit) {
      known[request.group].set(bit);
    } else {
      ready.fresh.push_back({request.group, request.name, request.signature});
    }
    membership.reported.emplace(request.name, std::move(pending));
  }
  for (auto& [group, bits] : known) {
    ready.known.push_back({group, std::move(bits)});
  }
  if (!ready.empty()) {
    send_ready(ready);
  }
}

void Engine::send_ready(const Ready& ready) {
  if (coordinator_) {
    coordinator_->receive(0, ready);
  } else {
    pump_->post(0, encode(ready));
  }
}

void Engine::receive_messages() {
  while (const auto message = pump_->take_message()) {
    if (coordinator_) {
      coordinator_->receive(message->from, decode_ready(message->bytes));
    } else {
      obey(decode_decision(message->bytes));
    }
  }
  if (coordinator_) {
    for (const Decision& decision : coordinator_->decide()) {
      issue(decision);
    }
  }
}

// Rank 0: tells the others before obeying itself, so that they can begin.
void Engine::issue(const Decision& decision) {
  const base::Bytes bytes = encode(decision);
  for (int rank = 1; rank < mesh_->size(); ++rank) {
    pump_->post(rank, bytes);
  }
  obey(decision);
}

void Engine::obey(const Decision& decision) {
  switch (decision.type) {
    case Decision::Type::kCharter:
      obey_charter(decision);
      break;
    case Decision::Type::kRun:
      obey_run(decision);
      break;
    case Decision::Type::kLeft:
      end_world(Error(Code::kShutDown,
                      "rank " + std::to_string(decision.left_rank) +
                          " has shut down, so collectives can no longer complete in this world. If its script was not "
                          "meant to be at its end, look at what it printed last",
                      decision.left_rank));
      break;
    case Decision::Type::kGone:
      everyone_finished_ = true;
      break;
  }
}

void Engine::obey_charter(const Decision& decision) {
  fusion_threshold_ = decision.fusion_threshold;
  backend_ = std::make_unique<backend::Native>(*pump_, *arena_,
                                               backend::Tuning{decision.half_bytes, decision.algorithm});
}

void Engine::obey_run(const Decision& decision) {
  backend_->begin(++decisions_);
  const auto found = memberships_.find(decision.group);
  if (found == memberships_.end()) {
    return;  // not our group
  }
  Membership& membership = found->second;
  std::vector<Runnable> runnables;
  decision.known.for_each(
      [&](uint32_t bit) { runnables.push_back(take_agreed(membership, membership.catalog.at(bit))); });
  for (const Decision::Agreed& agreed : decision.agreed) {
    if (agreed.bit != kNoBit) {
      membership.catalog.put(agreed);
    }
    runnables.push_back(take_agreed(membership, agreed));
  }
  for (const Decision::Refused& refused : decision.refused) {
    std::unique_ptr<Pending> pending = take_reported(membership, refused.name);
    if (pending->request.signature.kind == Kind::kRemoveGroup) {
      const std::lock_guard lock(mutex_);
      closing_groups_.erase(static_cast<uint32_t>(pending->request.signature.shape[0]));
    }
    complete(std::move(pending), Code::kMismatch, refused.reason, -1);
  }
  {
    const std::lock_guard lock(mutex_);
    ++stats_.rounds;
  }
  announce_completions();
  const Group group = membership.group;  // a copy: the decision may remove the group
  run_all(group, std::move(runnables));
}

Engine::Runnable Engine::take_agreed(Membership& membership, const Decision::Agreed& agreed) {
  Runnable runnable{take_reported(membership, agreed.name), agreed.sizes, {}};
  if (agreed.signature.kind == Kind::kAddGroup) {
    // Known before the handle is done, so that the group can be used at once.
    add_group(agreed);
    runnable.pending->completion->sizes = agreed.sizes;
  } else if (agreed.signature.kind == Kind::kRemoveGroup) {
    remove_group(static_cast<uint32_t>(agreed.signature.shape.at(0)));
  }
  record(Phase::kAgreed, *runnable.pending, kNone);
  return runnable;
}

void Engine::add_group(const Decision::Agreed& agreed) {
  Group group;
  group.id = static_cast<uint32_t>(agreed.sizes.at(0));
  group.members.assign(agreed.signature.shape.begin(), agreed.signature.shape.end());
  std::ranges::sort(group.members);
  group.index = group.index_of(mesh_->rank());
  if (group.index >= 0) {
    memberships_[group.id].group = group;
  }
  const std::lock_guard lock(mutex_);
  groups_[group.id] = group;
}

void Engine::remove_group(uint32_t id) {
  memberships_.erase(id);
  const std::lock_guard lock(mutex_);
  groups_.erase(id);
  closing_groups_.erase(id);
}

std::unique_ptr<Engine::Pending> Engine::take_reported(Membership& membership, const std::string& name) {
  auto node = membership.reported.extract(name);
  if (node.empty()) {
    throw Error(Code::kInternal, "a decision speaks of '" + name + "', which rank " + std::to_string(mesh_->rank()) +
                                     " never asked for. This is a bug of farandole's");
  }
  return std::move(node.mapped());
}

// --- engine thread: running ---------------------------------------------------------------------------------------------

void Engine::run_all(const Group& group, std::vector<Runnable> runnables) {
  std::vector<Fusible> plan;
  for (Runnable& runnable : runnables) {
    const Signature& signature = runnable.pending->request.signature;
    Fusible fusible{signature.bytes(), 0, true};
    switch (signature.kind) {
      case Kind::kAllreduce:
        runnable.choice = backend_->choose_allreduce(group, signature.bytes());
        fusible.alone = !runnable.choice.algorithm->fusible;
        fusible.key = fusion_key(signature, runnable.choice.index);
        break;
      case Kind::kAllgather:
        runnable.choice = backend_->choose_allgather(group);
        break;
      case Kind::kBroadcast:
        runnable.choice = backend_->choose_broadcast(group);
        break;
      default:
        runnable.choice = {nullptr, kNone, "agreement is all it takes"};
    }
    plan.push_back(fusible);
  }
  for (const std::vector<size_t>& indices : plan_buckets(plan, static_cast<size_t>(fusion_threshold_))) {
    std::vector<Runnable*> bucket;
    for (const size_t index : indices) {
      bucket.push_back(&runnables[index]);
    }
    try {
      run_bucket(group, bucket);
    } catch (...) {
      // Those that ran are done; the others go back, to fail with the world.
      for (Runnable& runnable : runnables) {
        if (runnable.pending != nullptr) {
          unfinished_.push_back(std::move(runnable.pending));
        }
      }
      throw;
    }
  }
}

void Engine::run_bucket(const Group& group, const std::vector<Runnable*>& bucket) {
  const int64_t started = base::now_ns();
  const Kind kind = bucket.front()->pending->request.signature.kind;
  Event event;
  event.time_ns = started;
  event.phase = Phase::kStarted;
  event.kind = kind;
  event.group = group.id;
  event.algorithm = bucket.front()->choice.index;
  event.bucket = buckets_++;
  uint64_t waited = 0;
  for (const Runnable* runnable : bucket) {
    event.bytes += runnable->pending->request.signature.bytes();
    waited += static_cast<uint64_t>(started - runnable->pending->submitted_ns);
  }
  events_.record(event);
  switch (kind) {
    case Kind::kAllreduce:
      run_allreduce(group, bucket);
      break;
    case Kind::kAllgather:
      run_allgather(group, *bucket.front());
      break;
    case Kind::kBroadcast:
      run_broadcast(group, *bucket.front());
      break;
    default:
      break;
  }
  event.time_ns = base::now_ns();
  event.phase = Phase::kMoved;
  events_.record(event);
  {
    const std::lock_guard lock(mutex_);
    stats_.requests += bucket.size();
    ++stats_.buckets;
    stats_.bytes += event.bytes;
    stats_.waiting_ns += waited;
    stats_.moving_ns += static_cast<uint64_t>(event.time_ns - started);
  }
  for (Runnable* runnable : bucket) {
    complete(std::move(runnable->pending), Code::kOk, "", -1);
  }
  announce_completions();
}

void Engine::run_allreduce(const Group& group, const std::vector<Runnable*>& bucket) {
  const Signature& signature = bucket.front()->pending->request.signature;
  collective::AllreduceJob job;
  job.dtype = signature.dtype;
  job.op = reduction_of(signature.op);
  job.prescale.factor = signature.prescale;
  job.postscale.factor = signature.postscale;
  job.postscale.divisor = signature.op == ReduceOp::kAverage ? static_cast<int64_t>(group.size()) : 1;
  for (const Runnable* runnable : bucket) {
    const Request& request = runnable->pending->request;
    job.pieces.push_back({request.input, request.output, static_cast<size_t>(request.signature.elements())});
  }
  backend_->run(group, bucket.front()->choice, job);
}

void Engine::run_allgather(const Group& group, Runnable& runnable) {
  const Request& request = runnable.pending->request;
  const size_t row = static_cast<size_t>(request.signature.row_elements()) * reduce::size_of(request.signature.dtype);
  collective::AllgatherJob job;
  job.input = request.input;
  size_t total = 0;
  for (const int64_t rows : runnable.sizes) {
    job.bytes.push_back(static_cast<size_t>(rows) * row);
    total += job.bytes.back();
  }
  Completion& completion = *runnable.pending->completion;
  completion.data.resize(total);
  completion.sizes = runnable.sizes;
  job.output = completion.data.data();
  backend_->run(group, runnable.choice, job);
}

void Engine::run_broadcast(const Group& group, Runnable& runnable) {
  const Request& request = runnable.pending->request;
  collective::BroadcastJob job;
  job.input = request.input;
  job.output = request.output;
  job.bytes = request.signature.bytes();
  job.root_index = group.index_of(request.signature.root);
  backend_->run(group, runnable.choice, job);
}

// --- engine thread: endings -----------------------------------------------------------------------------------------------

void Engine::record(Phase phase, const Pending& pending, uint32_t algorithm) {
  Event event;
  event.time_ns = phase == Phase::kSubmitted ? pending.submitted_ns : base::now_ns();
  event.bytes = pending.request.signature.bytes();
  event.phase = phase;
  event.kind = pending.request.signature.kind;
  event.group = pending.request.group;
  event.algorithm = algorithm;
  event.name = pending.name_number;
  events_.record(event);
}

void Engine::complete(std::unique_ptr<Pending> pending, Code code, const std::string& error, int lost_rank) {
  record(code == Code::kOk ? Phase::kDone : Phase::kFailed, *pending, kNone);
  {
    const std::lock_guard lock(mutex_);
    in_flight_.erase(key_of(pending->request.group, pending->request.name));
  }
  pending->completion->code = code;
  pending->completion->error = error;
  pending->completion->lost_rank = lost_rank;
  finished_.push_back(std::move(pending->completion));
}

void Engine::announce_completions() {
  if (!finished_.empty()) {
    completions_.finish(std::exchange(finished_, {}));
  }
}

void Engine::end_world(const Error& why) {
  world_over_ = true;
  std::vector<std::unique_ptr<Pending>> unfinished = std::exchange(unfinished_, {});
  {
    const std::lock_guard lock(mutex_);
    ended_ = why;
    for (auto& pending : std::exchange(queue_, {})) {
      unfinished.push_back(std::move(pending));
    }
  }
  for (auto& [id, membership] : memberships_) {
    for (auto& [name, pending] : std::exchange(membership.reported, {})) {
      unfinished.push_back(std::move(pending));
    }
  }
  for (auto& pending : unfinished) {
    complete(std::move(pending), why.code(), why.what(), why.lost_rank());
  }
  announce_completions();
}

}  // namespace farandole::engine
