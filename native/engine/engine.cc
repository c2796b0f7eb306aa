// Entering and leaving worlds.
#include "engine/engine.h"

#include <chrono>
#include <numeric>
#include <utility>

#include "backend/native/native.h"
#include "base/thread.h"

namespace farandole::engine {

using base::Code;
using base::Error;
using collective::Group;
using transport::Cause;
using transport::Sign;

Engine::Engine(EngineSettings settings) : settings_(std::move(settings)) {}

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
  recorder_.begin_world();
  outcomes_.begin_world();
  tuning_.begin_world();
  completions_.forget_names();
  stall_queries_.begin_world();
  failure_ = nullptr;
  // Of the last world, which all its members have left by now: otherwise this mesh would not have formed.
  agreement_.reset();
  agreement_ =
      std::make_unique<AgreementClient>(AgreementClient::Parts{settings_, submissions_, recorder_, outcomes_, tuning_,
                                                               stall_queries_, *mesh_, *arena_, *frames_, gpu_parts_},
                                        world);
  submissions_.begin_world(*mesh_, world);
  {
    const base::MutexLock lock(mutex_);
    thread_running_ = true;
  }
  thread_ = base::start_thread("farandole", [this] { thread_main(); });
}

void Engine::leave(const base::Deadline& deadline) {
  if (mesh_ == nullptr) {
    return;
  }
  submissions_.leave();
  {
    const base::MutexLock lock(mutex_);
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
  completions_.wait_for_callbacks();
  submissions_.end_stay();
  frames_.reset();
  mesh_.reset();
}

collective::Choice Engine::choose(Kind kind, ReduceOp op, uint32_t group, size_t bytes) const {
  return choose_for(kind, op, submissions_.topology_of(group), bytes, tuning_.knobs(), tuning_.algorithm());
}

void Engine::answer_stall_query(uint64_t query, std::string text) {
  if (stall_queries_.answer(query, std::move(text))) {
    submissions_.notify();
  }
}

collective::Choice choose_for(Kind kind, ReduceOp op, const collective::Topology& topology, size_t bytes,
                              const collective::Knobs& knobs, const std::string& wanted) {
  Options options;
  options.op = op;
  std::optional<backend::Need> need = need_of(kind, options);
  if (!need) {
    throw Error(Code::kInvalidArgument, std::string(name_of(kind)) + " needs no algorithm: agreement is all it takes");
  }
  need->bytes = bytes;
  return backend::choose_native(topology, *need, knobs, wanted);
}

}  // namespace farandole::engine
