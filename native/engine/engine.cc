// The users' side of the engine: entering and leaving worlds, and submitting.
#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "base/thread.h"

namespace farandole::engine {
namespace {

using base::Code;
using base::Error;
using collective::Group;
using transport::Cause;
using transport::Sign;

[[noreturn]] void refuse_name(const Request& request) {
  throw Error(Code::kInvalidArgument,
              "Requested to " + std::string(name_of(request.signature.kind)) +
                  " a tensor with the same name as another one that is still being processed: '" + request.name +
                  "'. Wait for the first one, or give the second another name.");
}

// Transfers match by their two ranks as well: those of one name between other ranks are others. So it is part of the
// name from here on.
std::string pair_of(const Signature& signature) {
  return " (" + std::to_string(signature.root) + " to " + std::to_string(signature.peer) + ")";
}

std::string key_of(uint32_t group, const std::string& name) { return std::to_string(group) + "/" + name; }

// All workers must share memory with rank 0.
transport::ArenaHeader* shm_agreement_header(const transport::Mesh& mesh) {
  const transport::ArenaView* const arena = mesh.arena(0);
  const bool one_host = std::ranges::all_of(mesh.hosts(), [](int lowest) { return lowest == 0; });
  return arena != nullptr && one_host ? &arena->header() : nullptr;
}

}  // namespace

Engine::Engine(EngineSettings settings) : settings_(std::move(settings)) {
  const base::MutexLock lock(mutex_);
  ended_ = Error(Code::kInvalidArgument, "the engine is in no world; call init() first");
}

Engine::~Engine() {
  if (mesh_ != nullptr) {
    abandon({mesh_->rank(), Sign::kRevoked,
             "rank " + std::to_string(mesh_->rank()) + " was lost: its engine was destroyed without leaving"});
  }
}

void Engine::enter(std::unique_ptr<transport::Mesh> mesh, transport::Arena& arena) {
  mesh_ = std::move(mesh);
  arena_ = &arena;
  arena_->resume();
  Group world;
  world.members.resize(static_cast<size_t>(mesh_->size()));
  std::iota(world.members.begin(), world.members.end(), 0);
  world.index = mesh_->rank();
  frames_ = std::make_unique<transport::FrameMultiplexer>(*mesh_, transport::WaitPolicy{settings_.spin_ns});
  backend_.reset();  // of the last world, whose members have all left it by now: this mesh would not have formed
  coordinator_ = mesh_->rank() == 0 ? std::make_unique<Coordinator>(mesh_->size()) : nullptr;
  inspector_ = coordinator_
                   ? std::make_unique<StallInspector>(settings_.stall_warning_seconds, settings_.stall_shutdown_seconds)
                   : nullptr;
  tuning_.reset();
  tuning_changed_ = false;
  memberships_.clear();
  memberships_[0].group = world;
  join_.reset();
  in_flight_ = 0;
  fast_path_ = {};
  shm_agreement_.emplace(shm_agreement_header(*mesh_), mesh_->size());
  last_request_ = {};
  round_trip_ns_ = 0;
  completions_.forget_names();
  failure_ = nullptr;
  decisions_ = 0;
  buckets_ = 0;
  reported_leaving_ = false;
  world_over_ = false;
  everyone_finished_ = false;
  {
    const base::MutexLock lock(mutex_);
    queue_.clear();
    wake_heuristic_ = {};
    naps_ = false;
    groups_.clear();
    groups_[0] = world;
    closing_groups_.clear();
    ended_.reset();
    ending_.reset();
    leaving_ = false;
    joining_ = false;
    stats_ = {};
    tuning_report_ = {};
    stall_query_ = stall_query_taken_ = 0;
    answers_.clear();
    thread_running_ = true;
  }
  thread_ = base::start_thread("farandole", [this] { thread_main(); });
}

void Engine::leave(const base::Deadline& deadline) {
  if (mesh_ == nullptr) {
    return;
  }
  {
    const base::MutexLock lock(mutex_);
    leaving_ = true;
    mesh_->doorbell().signal();
    thread_ended_.wait_for(mutex_, std::chrono::nanoseconds(deadline.left_ns()), [this] {
      mutex_.assert_held();
      return !thread_running_;
    });
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
    const base::MutexLock lock(mutex_);
    if (!thread_running_) {
      return;  // the world is over already, and so is this worker's part in it
    }
  }
  mesh_->world_status().revoke(cause);
}

void Engine::stop_thread() {
  thread_.join();
  frames_.reset();
  mesh_.reset();
  const base::MutexLock lock(mutex_);
  ended_ = Error(Code::kInvalidArgument, "the engine has left its world; call init() first");
  stall_query_changed_.notify_all();
}

void Engine::check_health() const {
  const base::MutexLock lock(mutex_);
  if (ended_) {
    throw *ended_;
  }
}

std::optional<Ending> Engine::ending() const {
  const base::MutexLock lock(mutex_);
  return ending_;
}

size_t Engine::size_of_group(uint32_t group) const {
  const base::MutexLock lock(mutex_);
  const auto found = groups_.find(group);
  return found == groups_.end() ? 0 : found->second.size();
}

Stats Engine::stats() const {
  const base::MutexLock lock(mutex_);
  return stats_;
}

std::vector<Handle> Engine::submit(std::vector<Request> requests, bool waits_at_once) {
  const int64_t now = base::now_ns();
  const base::MutexLock lock(mutex_);
  if (ended_) {
    throw *ended_;
  }
  std::vector<std::string> keys;
  keys.reserve(requests.size());
  for (Request& request : requests) {
    check(request);
    if (request.signature.kind == Kind::kTransfer) {
      request.name += pair_of(request.signature);
    }
    if (request.signature.kind == Kind::kJoin && requests.size() > 1) {
      throw Error(Code::kInvalidArgument, "join is submitted alone, not together with other requests.");
    }
    keys.push_back(key_of(request.group, request.name));
  }
  size_t taken = 0;
  std::vector<Completions::Opened> opened = completions_.open(std::move(keys), taken);
  if (opened.size() < requests.size()) {
    refuse_name(requests[taken]);
  }
  const bool comes_back = !waits_at_once && !opened.empty() &&
                          wake_heuristic_.submit(base::now_ns(), opened.front().handle, opened.size()) && naps_;
  std::vector<Handle> handles;
  handles.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    joining_ |= request.signature.kind == Kind::kJoin;
    if (request.signature.kind == Kind::kRemoveGroup) {
      closing_groups_.insert(static_cast<uint32_t>(request.signature.shape.at(0)));
    }
    handles.push_back(opened[i].handle);
    auto pending = std::make_unique<Pending>();
    pending->completion = std::move(opened[i].completion);
    pending->request = std::move(request);
    pending->submitted_ns = now;
    pending->is_waited_for = waits_at_once || comes_back;
    queue_.push_back(std::move(pending));
  }
  if (!waits_at_once && !comes_back) {
    mesh_->doorbell().signal();
  }
  return handles;
}

}  // namespace farandole::engine
