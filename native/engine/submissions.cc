#include "engine/submissions.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace farandole::engine {
namespace {

using base::Code;
using base::Error;
using collective::Group;

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

}  // namespace

Submissions::Submissions(Completions& completions, std::span<const backend::Row* const> backends, device::Gpus& gpus)
    : completions_(completions), gpus_(gpus), backends_(backends) {
  const base::MutexLock lock(mutex_);
  ended_ = Error(Code::kInvalidArgument, "the engine is in no world; call init() first");
}

void Submissions::begin_world(transport::Mesh& mesh, const Group& world) {
  const base::MutexLock lock(mutex_);
  mesh_ = &mesh;
  queue_.clear();
  wake_heuristic_ = {};
  sleeps_briefly_ = false;
  groups_.clear();
  groups_[0] = world;
  closing_groups_.clear();
  formed_.clear();
  ended_.reset();
  ending_.reset();
  leaving_ = false;
  joining_ = false;
}

std::vector<std::unique_ptr<Pending>> Submissions::end_world(const Error& why, bool certain) {
  const base::MutexLock lock(mutex_);
  ended_ = why;
  ending_ = {why.lost_rank(), certain};
  return std::exchange(queue_, {});
}

void Submissions::end_stay() {
  const base::MutexLock lock(mutex_);
  mesh_ = nullptr;
  ended_ = Error(Code::kInvalidArgument, "the engine has left its world; call init() first");
}

void Submissions::check_health() const {
  const base::MutexLock lock(mutex_);
  if (ended_) {
    throw *ended_;
  }
}

std::optional<Ending> Submissions::ending() const {
  const base::MutexLock lock(mutex_);
  return ending_;
}

void Submissions::leave() {
  const base::MutexLock lock(mutex_);
  leaving_ = true;
  if (mesh_ != nullptr) {
    mesh_->doorbell().signal();
  }
}

// Without the mutex where the driver is called: it may take its time to allocate memory.
std::vector<Submissions::Begun> Submissions::begin_on_gpus(std::vector<Request>& requests) {
  const auto is_on_host = [](const Request& request) { return request.signature.memory == backend::MemoryKind::kHost; };
  if (std::ranges::all_of(requests, is_on_host)) {
    return {};
  }
  std::vector<Begun> begun(requests.size());
  DeviceInputs inputs(gpus_);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (is_on_host(requests[i])) {
      continue;
    }
    Group group;
    backend::Selection selection;
    {
      const base::MutexLock lock(mutex_);
      if (ended_) {
        throw *ended_;
      }
      selection = check(requests[i]);
      group = groups_.at(requests[i].group);
    }
    if (selection.through_host || selection.row->capabilities.launches) {
      begun[i].ready = inputs.ready(requests[i]);
    }
    if (selection.through_host) {
      begun[i].mirror = std::make_unique<HostMirror>(*begun[i].ready, group, requests[i]);
    }
  }
  return begun;
}

std::vector<Handle> Submissions::submit(std::vector<Request> requests, bool waits_at_once) {
  const int64_t now = base::now_ns();
  std::vector<Begun> begun = begin_on_gpus(requests);
  const base::MutexLock lock(mutex_);
  if (ended_) {
    throw *ended_;
  }
  std::vector<Completions::Opening> openings;
  openings.reserve(requests.size());
  for (Request& request : requests) {
    check(request);
    if (request.signature.kind == Kind::kTransfer) {
      request.name += pair_of(request.signature);
    }
    if (request.signature.kind == Kind::kJoin && requests.size() > 1) {
      throw Error(Code::kInvalidArgument, "join is submitted alone, not together with other requests.");
    }
    openings.push_back({key_of(request.group, request.name), std::move(request.callback)});
  }
  size_t taken = 0;
  std::vector<Completions::Opened> opened = completions_.open(std::move(openings), taken);
  if (opened.size() < requests.size()) {
    refuse_name(requests[taken]);
  }
  const bool comes_back = !waits_at_once && !opened.empty() &&
                          wake_heuristic_.submit(base::now_ns(), opened.front().handle, opened.size()) &&
                          sleeps_briefly_;
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
    if (!begun.empty()) {
      pending->ready = std::move(begun[i].ready);
      pending->mirror = std::move(begun[i].mirror);
    }
    queue_.push_back(std::move(pending));
  }
  if (!waits_at_once && !comes_back) {
    mesh_->doorbell().signal();
  }
  return handles;
}

void Submissions::begin_wait(std::span<const Handle> handles) {
  const base::MutexLock lock(mutex_);
  if (wake_heuristic_.wait(base::now_ns(), handles) && !ended_) {
    mesh_->doorbell().call();
  }
}

void Submissions::notify() {
  const base::MutexLock lock(mutex_);
  if (!ended_) {
    mesh_->doorbell().signal();
  }
}

Submissions::Drained Submissions::drain() {
  const base::MutexLock lock(mutex_);
  return {std::exchange(queue_, {}), leaving_};
}

bool Submissions::has_any(bool knows_of_leaving) const {
  const base::MutexLock lock(mutex_);
  return !queue_.empty() || (leaving_ && !knows_of_leaving);
}

void Submissions::add_group(const Group& group) {
  const base::MutexLock lock(mutex_);
  groups_[group.id] = group;
}

void Submissions::remove_group(uint32_t id) {
  const base::MutexLock lock(mutex_);
  groups_.erase(id);
  closing_groups_.erase(id);
  formed_.erase(id);
}

void Submissions::keep_group(uint32_t id) {
  const base::MutexLock lock(mutex_);
  closing_groups_.erase(id);
}

void Submissions::end_join() {
  const base::MutexLock lock(mutex_);
  joining_ = false;
}

void Submissions::use_formed(uint32_t group) {
  const base::MutexLock lock(mutex_);
  formed_.insert(group);
}

bool Submissions::begin_short_sleep() {
  const base::MutexLock lock(mutex_);
  sleeps_briefly_ = wake_heuristic_.lasts(base::now_ns());
  return sleeps_briefly_;
}

bool Submissions::is_overdue() {
  const base::MutexLock lock(mutex_);
  if (queue_.empty() || !WakeHeuristic::is_late(queue_.front()->submitted_ns, base::now_ns())) {
    return false;
  }
  wake_heuristic_.lapse();
  return true;
}

size_t Submissions::size_of_group(uint32_t group) const {
  const base::MutexLock lock(mutex_);
  const auto found = groups_.find(group);
  return found == groups_.end() ? 0 : found->second.size();
}

std::vector<int> Submissions::ranks_of_group(uint32_t group) const {
  const base::MutexLock lock(mutex_);
  const auto found = groups_.find(group);
  return found == groups_.end() ? std::vector<int>() : found->second.members;
}

collective::Topology Submissions::topology_of(uint32_t group) const {
  const base::MutexLock lock(mutex_);
  if (ended_) {
    throw *ended_;
  }
  const auto found = groups_.find(group);
  if (found == groups_.end()) {
    throw Error(Code::kInvalidArgument, "there is no group " + std::to_string(group));
  }
  return collective::topology_of(found->second, mesh_->hosts());
}

}  // namespace farandole::engine
