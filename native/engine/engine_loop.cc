// The engine's life in one world, from the initial config to the last message, and its part in agreement.
#include <algorithm>
#include <utility>

#include "base/thread.h"
#include "engine/engine.h"

namespace farandole::engine {
namespace {

using base::Code;
using base::Error;
using collective::Group;
using transport::Cause;
using transport::Sign;

// How long goodbyes and last decisions may take to get out.
constexpr double kPartingSeconds = 1.0;

}  // namespace

void Engine::thread_main() {
  base::prefer_short_turns();
  try {
    live();
  } catch (const Error& error) {
    // If it is of our own making, nobody else knows yet.
    break_off({mesh_->rank(), Sign::kBroken, error.what()});
  } catch (const std::exception& error) {
    break_off({mesh_->rank(), Sign::kBroken,
               "rank " + std::to_string(mesh_->rank()) + " failed inside its engine: " + error.what()});
  }
  const base::MutexLock lock(mutex_);
  thread_running_ = false;
  thread_ended_.notify_all();
}

void Engine::break_off(const Cause& cause) {
  mesh_->world_status().revoke(cause);
  // From here on our memory may be put to new use; a worker that still reads it for this generation notices.
  mesh_->arena(mesh_->rank())->serve(transport::kNoGeneration);
  // What others may still write to stays out of use until all of them are in the next generation.
  arena_->hold();
  if (!world_over_) {
    end_world(mesh_->world_status().error(), transport::is_certain(mesh_->world_status().cause()->sign));
  }
}

void Engine::live() {
  if (coordinator_) {
    Decision config;
    config.type = Decision::Type::kInitialConfig;
    config.piece_bytes = settings_.piece_bytes;
    config.algorithm = settings_.algorithm;
    config.knobs = begin_tuning();
    issue(config);
  }
  while (!world_over_) {
    wait_for_work();
    if (!world_over_) {
      take_turn(transport::Notify::kNow);
    }
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
  send_ready(ready, transport::Notify::kNow);
  receive_messages();
  while (!everyone_finished_ && !deadline.passed()) {
    frames_->wait([&] { return frames_->has_message() || deadline.passed(); });
    receive_messages();
  }
  frames_->flush_messages(deadline);
}

// Looks, and sleeps once if there is nothing.
void Engine::wait_for_work() {
  const int64_t alarm_ns = next_alarm();
  const auto is_due = [alarm_ns] { return alarm_ns != 0 && base::now_ns() >= alarm_ns; };
  const auto ready = [&] { return has_work() || is_due(); };
  frames_->set_alarm(alarm_ns);
  const bool found = frames_->look(settings_.spin_ns, ready, [this] { return progress_lock_.is_wanted(); });
  if (!found && fast_path_.pending != nullptr) {
    end_fast_path();  // which is a turn: there may be work, or an end, before there is time for sleep
  } else if (!found && frames_->prepare_sleep(ready)) {
    sleep_without_progress_lock();
  }
  frames_->set_alarm(0);  // it is not for the waits of collectives, where nobody looks for stalls
  if (is_due() && !world_over_) {
    inspect_stalls();
  }
}

void Engine::take_turn(transport::Notify notify) {
  mesh_->world_status().throw_if_revoked();
  report_new_requests(notify);
  settle_fast_path(notify);
  receive_messages();
}

bool Engine::has_work() {
  if (frames_->has_message() || fast_path_is_settled()) {
    return true;
  }
  if (backend_ == nullptr) {
    return false;  // the initial config has not come yet: nothing can be reported
  }
  const base::MutexLock lock(mutex_);
  return !queue_.empty() || !answers_.empty() || (leaving_ && !reported_leaving_);
}

int64_t Engine::next_alarm() {
  if (inspector_ == nullptr || !inspector_->enabled()) {
    return 0;
  }
  if (inspector_->next_ns() == 0 && coordinator_->something_waits()) {
    inspector_->watch(base::now_ns());
  }
  return inspector_->next_ns();
}

void Engine::report_new_requests(transport::Notify notify) {
  if (backend_ == nullptr) {
    return;
  }
  std::vector<std::unique_ptr<Pending>> fresh;
  Ready ready;
  {
    const base::MutexLock lock(mutex_);
    fresh.swap(queue_);
    ready.answers.swap(answers_);
    ready.leaving = leaving_ && !reported_leaving_;
  }
  reported_leaving_ |= ready.leaving;
  in_flight_ += static_cast<int>(fresh.size());
  if (!fresh.empty()) {
    const Request& last = fresh.back()->request;
    last_request_ = {last.signature.kind, last.group, last.name, fresh.back()->submitted_ns};
  }
  if (fresh.size() == 1 && try_fast_path(fresh.front())) {
    fresh.clear();
  }
  int64_t submitted_ns = 0;
  for (const std::unique_ptr<Pending>& pending : fresh) {
    submitted_ns += pending->submitted_ns - fresh.front()->submitted_ns;
  }
  if (!fresh.empty()) {
    const auto count = static_cast<int64_t>(fresh.size());
    ready.age_ns = base::now_ns() - fresh.front()->submitted_ns - submitted_ns / count;
  }
  for (std::unique_ptr<Pending>& pending : fresh) {
    report(std::move(pending), ready);
  }
  if (!fresh.empty()) {
    shm_agreement_->close(decisions_ + 1);  // workers that wait there for this one take the slow path too
  }
  if (!ready.empty()) {
    send_ready(ready, notify);
  }
}

void Engine::report(std::unique_ptr<Pending> pending, Ready& ready) {
  const Request& request = pending->request;
  if (request.signature.kind == Kind::kJoin) {
    report_in_full(*pending, ready);
    join_ = std::move(pending);
    return;
  }
  const uint32_t bit = bit_of(request);
  if (bit == kNoBit) {
    report_in_full(*pending, ready);
    memberships_.at(request.group).reported.emplace(request.name, std::move(pending));
    return;
  }
  ready.add_known(request.group, bit);
  expect(std::move(pending), bit);
}

// While this rank has joined, what a bit stands for may change without it: another thread's request goes in full.
uint32_t Engine::bit_of(const Request& request) const {
  const Membership& membership = memberships_.at(request.group);
  return join_ != nullptr ? kNoBit : membership.cache.find(request.name, request.signature, membership.group.index);
}

void Engine::expect(std::unique_ptr<Pending> pending, uint32_t bit) {
  const Request& request = pending->request;
  Membership& membership = memberships_.at(request.group);
  if (bit >= membership.reported_bits.size()) {
    membership.reported_bits.resize(membership.cache.size());
    membership.name_numbers.resize(membership.cache.size(), kNone);
  }
  uint32_t& number = membership.name_numbers[bit];
  number = number == kNone ? events_.number_of(request.name, request.signature) : number;
  pending->name_number = number;
  record(Phase::kSubmitted, *pending, kNone);
  membership.reported_bits[bit] = std::move(pending);
}

void Engine::report_in_full(Pending& pending, Ready& ready) {
  const Request& request = pending.request;
  pending.name_number = events_.number_of(request.name, request.signature);
  record(Phase::kSubmitted, pending, kNone);
  ready.fresh.push_back({request.group, request.name, request.signature});
}

void Engine::send_ready(const Ready& ready, transport::Notify notify) {
  if (coordinator_) {
    count(0, ready);
  } else {
    frames_->post(0, encode(ready), notify);
  }
}

void Engine::count(int rank, const Ready& ready) {
  for (const StallAnswer& answer : ready.answers) {
    inspector_->hear(rank, answer);
  }
  const int64_t now = base::now_ns();
  if (!events_.are_read()) {
    coordinator_->receive(rank, ready, now);
    return;
  }
  Event event;
  event.time_ns = now;
  event.phase = Phase::kRankReady;
  event.rank = rank;
  coordinator_->receive(rank, ready, now, [&](uint32_t group, const std::string& name, const Signature& signature) {
    event.kind = signature.kind;
    event.group = group;
    event.bytes = signature.bytes();
    event.name = events_.number_of(name, signature);
    events_.record(event);
  });
}

void Engine::receive_messages() {
  while (const auto message = frames_->take_message()) {
    if (coordinator_) {
      count(message->from, decode_ready(message->bytes));
    } else {
      obey_in_order(decode_decision(message->bytes));
    }
  }
  if (coordinator_) {
    for (const Decision& decision : coordinator_->decide(base::now_ns())) {
      issue(decision);
    }
  }
}

// Rank 0: tells the others before obeying itself, so that they can begin.
void Engine::issue(Decision decision) {
  while (shm_agreement_->close(decisions_ + 1) == ShmAgreement::State::kAll) {
    run_fast_path();
  }
  decision.number = decisions_ + 1;
  const base::Bytes bytes = encode(decision);
  for (int rank = 1; rank < mesh_->size(); ++rank) {
    frames_->post(rank, bytes);
  }
  obey(decision);
}

void Engine::obey(const Decision& decision) {
  if (decision.type != Decision::Type::kStallQuery) {
    decisions_ = decision.number;
  }
  switch (decision.type) {
    case Decision::Type::kInitialConfig:
      apply_initial_config(decision);
      break;
    case Decision::Type::kRun:
      obey_run(decision);
      break;
    case Decision::Type::kLeft:
      end_world(Error(Code::kShutDown,
                      "rank " + std::to_string(decision.left_rank) +
                          " has shut down, so collectives can no longer complete in this world. If its script was not "
                          "meant to be at its end, look at what it printed last",
                      decision.left_rank),
                /*certain=*/true);
      break;
    case Decision::Type::kGone:
      everyone_finished_ = true;
      break;
    case Decision::Type::kStallQuery:
      receive_stall_query(decision.query);
      break;
    case Decision::Type::kTune:
      obey_tune(decision);
      break;
  }
  if (in_flight_ > 0) {
    // What this worker has asked for by message, others must not wait for it to announce.
    shm_agreement_->close(decisions_ + 1);
  }
}

void Engine::apply_initial_config(const Decision& decision) {
  backend_ = std::make_unique<backend::Native>(
      *frames_, *arena_, backend::Tuning{decision.piece_bytes, decision.algorithm, decision.knobs});
  const base::MutexLock lock(mutex_);
  knobs_ = backend_->knobs();
  algorithm_ = decision.algorithm;
}

void Engine::obey_run(const Decision& decision) {
  backend_->begin(decision.number);
  const auto found = memberships_.find(decision.group);
  if (found == memberships_.end()) {
    return;  // not our group
  }
  Membership& membership = found->second;
  const int rank = mesh_->rank();
  const bool absent = std::ranges::find(decision.absent, rank) != decision.absent.end();
  std::vector<Runnable> runnables;
  const auto take = [&](const Decision::Agreed& agreed, uint32_t bit) {
    if (takes_part(agreed.signature, rank)) {
      runnables.push_back(take_agreed(membership, agreed, bit, absent));
    }
  };
  decision.known.for_each([&](uint32_t bit) { take(membership.cache.at(bit), bit); });
  for (const Decision::Agreed& agreed : decision.agreed) {
    if (agreed.bit != kNoBit) {
      membership.cache.put(agreed);
    }
    take(agreed, kNoBit);
  }
  for (const Decision::Refused& refused : decision.refused) {
    if (std::ranges::find(refused.asked, rank) != refused.asked.end()) {
      fail_refused(membership, refused);
    }
  }
  Event round;
  round.time_ns = base::now_ns();
  round.phase = Phase::kRound;
  round.group = decision.group;
  events_.record(round);
  {
    const base::MutexLock lock(mutex_);
    ++stats_.rounds;
  }
  announce_completions();
  measure_agreement(decision, runnables);
  const Group group = membership.group;  // a copy: the decision may remove the group
  run_all(group, std::move(runnables));
  tune();
}

void Engine::fail_refused(Membership& membership, const Decision::Refused& refused) {
  std::unique_ptr<Pending> pending = take_reported(membership, refused.name, kNoBit);
  if (pending->request.signature.kind == Kind::kRemoveGroup) {
    const base::MutexLock lock(mutex_);
    closing_groups_.erase(static_cast<uint32_t>(pending->request.signature.shape[0]));
  }
  complete(std::move(pending), Code::kMismatch, refused.reason, -1);
}

Engine::Runnable Engine::take_agreed(Membership& membership, const Decision::Agreed& agreed, uint32_t bit,
                                     bool absent) {
  if (absent) {
    return {absent_part(membership, agreed), {}, {}};
  }
  if (agreed.signature.kind == Kind::kJoin) {
    Runnable joined{take_join(), agreed.sizes, {}};
    joined.pending->completion->sizes = agreed.sizes;
    return joined;
  }
  Runnable runnable{take_reported(membership, agreed.name, bit), agreed.sizes, {}};
  if (agreed.signature.kind == Kind::kAddGroup) {
    // Known before the handle is done, so that the group can be used at once.
    add_group(agreed);
    runnable.pending->completion->sizes = agreed.sizes;
  } else if (agreed.signature.kind == Kind::kRemoveGroup) {
    remove_group(static_cast<uint32_t>(agreed.signature.shape.at(0)));
  }
  return runnable;
}

// What this rank, which has joined, runs so that the others can go on: no input, no output, nobody who waits for it.
std::unique_ptr<Engine::Pending> Engine::absent_part(const Membership& membership,
                                                     const Decision::Agreed& agreed) const {
  auto pending = std::make_unique<Pending>();
  pending->request.group = membership.group.id;
  pending->request.name = agreed.name;
  pending->request.signature = agreed.signature;
  pending->submitted_ns = base::now_ns();
  return pending;
}

std::unique_ptr<Engine::Pending> Engine::take_join() {
  if (join_ == nullptr) {
    throw Error(Code::kInternal, "a decision says that all have joined, but rank " + std::to_string(mesh_->rank()) +
                                     " has not. This is a bug of farandole's");
  }
  const base::MutexLock lock(mutex_);
  joining_ = false;
  return std::move(join_);
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
  const base::MutexLock lock(mutex_);
  groups_[group.id] = group;
}

void Engine::remove_group(uint32_t id) {
  memberships_.erase(id);
  const base::MutexLock lock(mutex_);
  groups_.erase(id);
  closing_groups_.erase(id);
}

// What one rank has reported as a bit, another one may have reported in full, and then the decision is in full.
std::unique_ptr<Engine::Pending> Engine::take_reported(Membership& membership, const std::string& name, uint32_t bit) {
  if (bit == kNoBit) {
    if (auto node = membership.reported.extract(name); !node.empty()) {
      return std::move(node.mapped());
    }
    bit = membership.cache.find_name(name);
  }
  if (bit >= membership.reported_bits.size() || membership.reported_bits[bit] == nullptr) {
    throw Error(Code::kInternal, "a decision speaks of '" + name + "', which rank " + std::to_string(mesh_->rank()) +
                                     " never asked for. This is a bug of farandole's");
  }
  return std::move(membership.reported_bits[bit]);
}

bool Engine::Membership::awaits(const std::string& name) const {
  const uint32_t bit = cache.find_name(name);
  return reported.contains(name) || (bit < reported_bits.size() && reported_bits[bit] != nullptr);
}

void Engine::end_world(const Error& why, bool certain) {
  world_over_ = true;
  std::vector<std::unique_ptr<Pending>> unfinished = std::exchange(unfinished_, {});
  {
    const base::MutexLock lock(mutex_);
    ended_ = why;
    ending_ = {why.lost_rank(), certain};
    stall_query_changed_.notify_all();
    for (auto& pending : std::exchange(queue_, {})) {
      unfinished.push_back(std::move(pending));
    }
  }
  if (join_ != nullptr) {
    unfinished.push_back(std::move(join_));
  }
  if (fast_path_.pending != nullptr) {
    unfinished.push_back(std::move(fast_path_.pending));
  }
  for (auto& [id, membership] : memberships_) {
    for (auto& [name, pending] : std::exchange(membership.reported, {})) {
      unfinished.push_back(std::move(pending));
    }
    for (auto& pending : std::exchange(membership.reported_bits, {})) {
      if (pending != nullptr) {
        unfinished.push_back(std::move(pending));
      }
    }
  }
  for (auto& pending : unfinished) {
    complete(std::move(pending), why.code(), why.what(), why.lost_rank());
  }
  announce_completions();
}

}  // namespace farandole::engine
