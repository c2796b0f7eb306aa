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

std::string key_of(uint32_t group, const std::string& name) { return std::to_string(group) + "/" + name; }

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
  pump_ = std::make_unique<transport::Pump>(*mesh_, transport::WaitPolicy{settings_.spin_ns});
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
    const base::MutexLock lock(mutex_);
    queue_.clear();
    in_flight_.clear();
    groups_.clear();
    groups_[0] = world;
    closing_groups_.clear();
    ended_.reset();
    leaving_ = false;
    stats_ = {};
    question_ = question_taken_ = 0;
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
    mesh_->doorbell().ring();
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
  mesh_->fate().revoke(cause);
}

void Engine::stop_thread() {
  thread_.join();
  pump_.reset();
  mesh_.reset();
  const base::MutexLock lock(mutex_);
  ended_ = Error(Code::kInvalidArgument, "the engine has left its world; call init() first");
  question_changed_.notify_all();
}

void Engine::check_health() const {
  const base::MutexLock lock(mutex_);
  if (ended_) {
    throw *ended_;
  }
}

size_t Engine::size_of_group(uint32_t group) const {
  const base::MutexLock lock(mutex_);
  const auto found = groups_.find(group);
  return found == groups_.end() ? 0 : found->second.size();
}

int Engine::wait_question(const base::Deadline& deadline, uint64_t& question) {
  const base::MutexLock lock(mutex_);
  const bool woken = question_changed_.wait_for(mutex_, std::chrono::nanoseconds(deadline.left_ns()), [this] {
    mutex_.assert_held();
    return ended_.has_value() || question_ != question_taken_;
  });
  if (ended_) {
    return -1;
  }
  question = question_taken_ = question_;
  return woken ? 1 : 0;
}

void Engine::answer(uint64_t question, std::string text) {
  const base::MutexLock lock(mutex_);
  if (!ended_) {
    answers_.push_back({question, true, std::move(text)});
    mesh_->doorbell().ring();
  }
}

Stats Engine::stats() const {
  const base::MutexLock lock(mutex_);
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
  const base::MutexLock lock(mutex_);
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
    pending->key = key_of(request.group, request.name);
    pending->request = std::move(request);
    pending->submitted_ns = now;
    queue_.push_back(std::move(pending));
  }
  mesh_->doorbell().ring();
  return handles;
}

}  // namespace farandole::engine
