#include "engine/submissions.h"

#include <algorithm>
#include <iterator>
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

bool is_on_host(const Request& request) { return request.signature.memory == backend::MemoryKind::kHost; }

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
  ++worlds_;
  queue_.clear();
  has_queued_ = false;
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
  has_queued_ = false;
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

std::vector<Handle> Submissions::submit(std::vector<Request> requests, bool waits_at_once) {
  if (!std::ranges::all_of(requests, is_on_host)) {
    return submit_on_gpus(std::move(requests), waits_at_once);
  }
  const base::MutexLock lock(mutex_);
  return enqueue(admit(std::move(requests)), waits_at_once);
}

// The GPUs begin when nothing but a GPU, or the end of the world meanwhile, is left to refuse the call: its tensors may
// be freed as soon as it is refused.
std::vector<Handle> Submissions::submit_on_gpus(std::vector<Request> requests, bool waits_at_once) {
  Admitted admitted;
  {
    const base::MutexLock lock(mutex_);
    admitted = admit(std::move(requests));
  }
  const Completions::Opened opened = admitted.opened;
  try {
    begin_on_gpus(admitted);
    const base::MutexLock lock(mutex_);
    check_world(admitted);
    for (const auto& pending : admitted.requests) {
      check(pending->request);
    }
    return enqueue(std::move(admitted), waits_at_once);
  } catch (...) {
    completions_.withdraw(opened);
    throw;
  }
}

Submissions::Admitted Submissions::admit(std::vector<Request> requests) {
  if (ended_) {
    throw *ended_;
  }
  const int64_t now = base::now_ns();
  Admitted admitted{.requests = {}, .opened = {}, .world = worlds_, .callbacks = 0};
  admitted.requests.reserve(requests.size());
  admitted.opened.reserve(requests.size());
  for (Request& request : requests) {
    check(request);
    if (request.signature.kind == Kind::kTransfer) {
      request.name += pair_of(request.signature);
    }
    if (request.signature.kind == Kind::kJoin && requests.size() > 1) {
      throw Error(Code::kInvalidArgument, "join is submitted alone, not together with other requests.");
    }
    auto completion = std::make_shared<Completion>();
    if (!request.in_turn) {
      completion->key = key_of(request.group, request.name);
    }
    if (request.callback != nullptr) {
      completion->callback = std::move(request.callback);
      ++admitted.callbacks;
    }
    auto pending = std::make_unique<Pending>();
    pending->completion = completion;
    pending->request = std::move(request);
    pending->submitted_ns = now;
    admitted.requests.push_back(std::move(pending));
    admitted.opened.push_back(std::move(completion));
  }
  if (const auto taken = completions_.open(admitted.opened)) {
    refuse_name(admitted.requests[*taken]->request);
  }
  return admitted;
}

void Submissions::check_world(const Admitted& admitted) const {
  if (ended_) {
    throw *ended_;
  }
  if (worlds_ != admitted.world) {
    throw Error(Code::kShutDown, "the world ended, and another one began, while a request was being submitted");
  }
}

// Without the mutex where the driver is called: it may take its time to allocate memory.
// No copy begins before all requests have been looked at.
void Submissions::begin_on_gpus(const Admitted& admitted) {
  struct OnGpu {
    Pending& pending;
    backend::Selection selection;
    Group group;
  };
  std::vector<OnGpu> on_gpus;
  {
    const base::MutexLock lock(mutex_);
    check_world(admitted);
    for (const auto& pending : admitted.requests) {
      if (!is_on_host(pending->request)) {
        on_gpus.push_back({*pending, check(pending->request), groups_.at(pending->request.group)});
      }
    }
  }
  DeviceInputs inputs(gpus_);
  for (const auto& [pending, selection, group] : on_gpus) {
    if (selection.through_host || selection.row->capabilities.launches) {
      pending.ready = inputs.ready(pending.request);
    }
  }
  for (const auto& [pending, selection, group] : on_gpus) {
    if (selection.through_host) {
      pending.mirror = std::make_unique<HostMirror>(*pending.ready, group, pending.request);
    }
  }
}

std::vector<Handle> Submissions::enqueue(Admitted admitted, bool waits_at_once) {
  std::vector<Handle> handles;
  handles.reserve(admitted.requests.size());
  for (const auto& pending : admitted.requests) {
    handles.push_back(pending->completion->handle);
  }
  const bool comes_back = !waits_at_once && !handles.empty() &&
                          wake_heuristic_.submit(base::now_ns(), handles.front(), handles.size()) && sleeps_briefly_;
  for (const auto& pending : admitted.requests) {
    const Signature& signature = pending->request.signature;
    joining_ |= signature.kind == Kind::kJoin;
    if (signature.kind == Kind::kRemoveGroup) {
      closing_groups_.insert(static_cast<uint32_t>(signature.shape.at(0)));
    }
    pending->is_waited_for = waits_at_once || comes_back;
  }
  if (admitted.callbacks > 0) {
    completions_.expect_callbacks(admitted.callbacks);
  }
  if (queue_.empty()) {
    queue_ = std::move(admitted.requests);
  } else {
    std::ranges::move(admitted.requests, std::back_inserter(queue_));
  }
  has_queued_ = !queue_.empty();
  if (!waits_at_once && !comes_back) {
    mesh_->doorbell().signal();
  }
  return handles;
}

void Submissions::begin_wait(std::span<const Handle> handles) {
  const base::MutexLock lock(mutex_);
  if (wake_heuristic_.expects_wait() && wake_heuristic_.wait(base::now_ns(), handles) && !ended_) {
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
  if (!has_queued_) {
    return {{}, leaving_};
  }
  const base::MutexLock lock(mutex_);
  has_queued_ = false;
  return {std::exchange(queue_, {}), leaving_};
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
