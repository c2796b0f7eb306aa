#include "engine/agreement_client.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace farandole::engine {
namespace {

using base::Error;
using collective::Group;
using transport::Notify;

// The time limit for sending goodbyes and last decisions.
constexpr double kPartingSeconds = 1.0;
// The time limit for copies of results to a GPU when the world is over.
constexpr double kCopySeconds = 10.0;
// How long a request may be on the fast path: longer than most workers come late, and shorter than a stall that is
// worth a warning.
constexpr int64_t kFastPathNs = 200'000'000;
// The interval at which a sleeping thread checks whether a GPU has done its copies.
constexpr int64_t kGpuLookNs = 1'000'000;

AgreementTree tree_of(const transport::Mesh& mesh, const EngineSettings& settings) {
  return {mesh.rank(), mesh.hosts(), choose_fanout(mesh.hosts(), settings.agreement_fanout)};
}

}  // namespace

AgreementClient::AgreementClient(const Parts& parts, const Group& world)
    : parts_(parts),
      rank_(parts.mesh.rank()),
      core_(tree_of(parts.mesh, parts.settings), world, parts.settings.gpu == backend::GpuMode::kNccl, parts.recorder,
            parts.settings.report_hold_ns),
      fast_path_(parts.mesh) {
  if (rank_ == 0) {
    inspector_.emplace(parts_.settings.stall_warning_seconds, parts_.settings.stall_shutdown_seconds);
  }
}

void AgreementClient::begin() {
  if (core_.coordinator() == nullptr) {
    parts_.frames.expect(core_.tree().parent());
    return;
  }
  Decision config;
  config.type = Decision::Type::kInitialConfig;
  config.piece_bytes = parts_.settings.piece_bytes;
  config.algorithm = parts_.settings.algorithm;
  config.backend = parts_.settings.backend;
  config.gpu = parts_.settings.gpu;
  config.fanout = static_cast<uint32_t>(core_.tree().fanout());
  config.knobs = parts_.tuning.begin_tuning(collective::topology_of(*core_.group(0), parts_.mesh.hosts()));
  issue(config);
}

bool AgreementClient::has_work() const {
  if (parts_.frames.has_message() || fast_path_.is_settled(next_number())) {
    return true;
  }
  if (parts_.outcomes.has_launched() && parts_.outcomes.has_reached()) {
    return true;
  }
  if (runner_ == nullptr) {
    return false;  // the initial config has not come yet: nothing can be reported
  }
  return arrivals_.has_any() || names_.has_next() || parts_.stall_queries.has_answers() ||
         parts_.submissions.has_any(reported_leaving_);
}

void AgreementClient::take_turn(Notify notify) {
  parts_.mesh.world_status().throw_if_revoked();
  if (parts_.outcomes.has_launched()) {
    formations_->check();
    parts_.outcomes.settle();
  }
  report_new_requests(notify);
  settle_fast_path(notify);
  receive_messages();
}

// The world has ended in good order. Others may still be at work on what was agreed before, reading our memory: only
// when all have finished may it be put to new use.
void AgreementClient::wait_for_everyone() {
  const auto deadline = base::Deadline::after_seconds(kPartingSeconds);
  Ready ready;
  ready.finished = true;
  send_ready(std::move(ready), Notify::kNow);
  receive_messages();
  while (!everyone_finished_ && !deadline.passed()) {
    parts_.frames.wait([&] { return parts_.frames.has_message() || deadline.passed(); });
    receive_messages();
  }
  parts_.frames.flush_messages(deadline);
}

int64_t AgreementClient::next_alarm() {
  const int64_t held_ns = core_.subtree() == nullptr ? 0 : core_.subtree()->due_ns();
  const int64_t gpus_ns = watches_gpus() ? base::now_ns() + kGpuLookNs : 0;
  int64_t first_ns = 0;
  for (const int64_t alarm_ns : {next_stall_alarm(), held_ns, gpus_ns, fast_path_ends()}) {
    first_ns = first_ns == 0 || (alarm_ns != 0 && alarm_ns < first_ns) ? alarm_ns : first_ns;
  }
  return first_ns;
}

int64_t AgreementClient::fast_path_ends() const noexcept {
  return fast_path_.holds_request() ? fast_path_.submitted_ns() + kFastPathNs : 0;
}

transport::Sleep AgreementClient::sleeps_for() const noexcept {
  return fast_path_.holds_request() ? transport::Sleep::kAgreeing : transport::Sleep::kIdle;
}

int64_t AgreementClient::next_stall_alarm() {
  if (!inspector_ || !inspector_->enabled()) {
    return 0;
  }
  if (inspector_->next_ns() == 0 && core_.coordinator()->something_waits()) {
    inspector_->watch(base::now_ns());
  }
  return inspector_->next_ns();
}

void AgreementClient::act_on_alarm() {
  pass_up();
  inspect_stalls();
}

void AgreementClient::inspect_stalls() {
  if (const int64_t at_ns = next_stall_alarm(); at_ns == 0 || base::now_ns() < at_ns) {
    return;
  }
  const StallInspector::Findings findings = inspector_->inspect(base::now_ns(), core_.coordinator()->waiting());
  if (!findings.ask.empty()) {
    Decision query;
    query.type = Decision::Type::kStallQuery;
    query.query = findings.query;
    for (const int rank : findings.ask) {
      query.asked.add(RankSet(rank));
    }
    pass_down(query);
    if (query.asked.contains(rank_)) {
      obey(query);
    }
  }
  if (!findings.warning.empty()) {
    base::log(findings.end.empty() ? base::Level::kWarning : base::Level::kError, 0, findings.warning);
  }
  if (!findings.end.empty()) {
    const int to_blame = findings.responsible.size() == 1 ? findings.responsible.front() : -1;
    parts_.mesh.world_status().revoke({to_blame, transport::Sign::kStalled, findings.end});
  }
}

// --- to rank 0

void AgreementClient::report_new_requests(Notify notify) {
  if (runner_ == nullptr) {
    return;
  }
  Submissions::Drained drained = parts_.submissions.drain();
  parts_.outcomes.take_up(drained.requests.size());
  if (!drained.requests.empty()) {
    const Pending& last = *drained.requests.back();
    last_request_ = {last.request.signature.kind, last.request.group, last.request.name, last.submitted_ns};
  }
  std::vector<std::unique_ptr<Pending>> fresh = arrivals_.exchange(names_.admit(std::move(drained.requests)));
  Ready ready;
  ready.answers = parts_.stall_queries.take_answers();
  ready.leaving = drained.leaving && !reported_leaving_;
  reported_leaving_ |= ready.leaving;
  if (fresh.size() == 1 && try_fast_path(fresh.front())) {
    fresh.clear();
  }
  if (!fresh.empty()) {
    int64_t later_ns = 0;  // than the first one, their sum
    for (const std::unique_ptr<Pending>& pending : fresh) {
      later_ns += pending->submitted_ns - fresh.front()->submitted_ns;
    }
    ready.age_ns = base::now_ns() - fresh.front()->submitted_ns - later_ns / static_cast<int64_t>(fresh.size());
    for (std::unique_ptr<Pending>& pending : fresh) {
      formations_->introduce(*core_.group(pending->request.group), *pending, ready);
      core_.reported().add(std::move(pending), ready);
    }
    fast_path_.close(next_number());  // workers that wait there for this one take the slow path too
  }
  formations_->report(ready);
  if (!ready.empty()) {
    send_ready(std::move(ready), notify);
  }
}

void AgreementClient::send_ready(Ready ready, Notify notify) {
  if (core_.coordinator() != nullptr || core_.subtree() != nullptr) {
    count(core_.own_report(std::move(ready)));
  } else {
    parts_.frames.post(core_.tree().parent(), encode(ready), notify);
  }
}

void AgreementClient::count(const Report& report) {
  const int64_t now = base::now_ns();
  if (core_.subtree() != nullptr) {
    core_.subtree()->add(report, now);
    return;
  }
  for (const StallAnswer& answer : report.ready.answers) {
    inspector_->hear(report.last_rank, answer);
  }
  if (!parts_.recorder.events().are_read()) {
    core_.coordinator()->receive(report, now);
    return;
  }
  core_.coordinator()->receive(report, now,
                               [&](int rank, uint32_t group, const std::string& name, const Signature& signature) {
                                 parts_.recorder.record_report(rank, group, name, signature, now);
                               });
}

void AgreementClient::pass_up() {
  if (core_.subtree() == nullptr) {
    return;
  }
  if (const std::vector<Report> reports = core_.subtree()->take(base::now_ns()); !reports.empty()) {
    parts_.frames.post(core_.tree().parent(), encode(reports));
  }
}

bool AgreementClient::try_fast_path(std::unique_ptr<Pending>& pending) {
  if (core_.coordinator() != nullptr && parts_.recorder.events().are_read()) {
    fast_path_.forbid();  // readers of events want to see when each rank was ready
  }
  const Request& request = pending->request;
  if (!pending->is_waited_for || parts_.outcomes.in_flight() > 1 || request.group != 0 ||
      request.signature.kind == Kind::kTransfer) {
    return false;
  }
  const uint32_t bit = core_.reported().bit_of(request);
  if (bit == kNoBit || !fast_path_.is_open(next_number())) {
    return false;
  }
  // Before staging, which ends with an error when the world does: then it fails with the others.
  Pending& held = fast_path_.hold({std::move(pending), bit, next_number()});
  runner_->begin(next_number());
  runner_->stage(*core_.group(0), held);
  if (fast_path_.announce([&] { runner_->reduce_staged(*core_.group(0), held); })) {
    return true;
  }
  pending = fast_path_.take().pending;
  pending->is_staged = false;
  return false;
}

void AgreementClient::settle_fast_path(Notify notify) {
  const FastPath::State state = fast_path_.state(next_number());
  if (state == FastPath::State::kAll) {
    run_fast_path();
  } else if (state == FastPath::State::kClosed) {
    report_fast_path(notify);
  }
}

void AgreementClient::run_fast_path() {
  const int last = fast_path_.last();
  FastPathRequest request = fast_path_.take();
  request.pending->reduced_by = last;
  Decision decision;
  decision.number = request.number;
  decision.known.set(request.bit);
  core_.reported().add_by_bit(std::move(request.pending), request.bit);
  obey(decision);
  parts_.recorder.count_fast_path_round();
}

void AgreementClient::report_fast_path(Notify notify) {
  Ready ready;
  std::unique_ptr<Pending> pending = fast_path_.take().pending;
  ready.age_ns = base::now_ns() - pending->submitted_ns;
  pending->is_staged = false;
  core_.reported().add(std::move(pending), ready);
  send_ready(std::move(ready), notify);
}

void AgreementClient::end_fast_path() {
  while (fast_path_.holds_request() && !is_over_) {
    const FastPath::State state = fast_path_.close_request(next_number());
    if (state == FastPath::State::kAll) {
      run_fast_path();
    } else if (state == FastPath::State::kClosed) {
      report_fast_path(Notify::kNow);
      receive_messages();
    } else {
      // The decision that says what has become of it is on its way.
      parts_.frames.wait([this] { return parts_.frames.has_message(); });
      receive_messages();
    }
  }
}

// --- rank 0

void AgreementClient::decide() {
  for (const FormationTally::Introduced& introduced : core_.coordinator()->formations().take_introduced()) {
    issue(formations_->prepare(introduced));
  }
  for (const Decision& decision : core_.coordinator()->decide(base::now_ns())) {
    issue(decision);
  }
}

// Tells the others before obeying itself, so that they can begin.
void AgreementClient::issue(Decision decision) {
  while (fast_path_.close(next_number()) == FastPath::State::kAll) {
    run_fast_path();
  }
  decision.number = next_number();
  pass_down(decision);
  obey(decision);
}

// --- from rank 0

void AgreementClient::receive_messages() {
  do {
    const std::vector<Decision> decisions = take_messages();
    pass_up();  // before what is obeyed takes its time
    for (const Decision& decision : decisions) {
      obey_in_order(decision);
    }
  } while (parts_.frames.has_message());
  pass_up();
  if (core_.coordinator() != nullptr) {
    decide();
  }
}

std::vector<Decision> AgreementClient::take_messages() {
  std::vector<Decision> decisions;
  while (const auto message = parts_.frames.take_message()) {
    if (core_.tree().is_child(message->from)) {
      for (const Report& report : core_.read(message->from, message->bytes)) {
        count(report);
      }
      continue;
    }
    Decision decision = decode_decision(message->bytes);
    if (core_.subtree() != nullptr) {
      core_.subtree()->follow(decision);
    }
    pass_down(decision);
    if (decision.type != Decision::Type::kStallQuery || decision.asked.contains(rank_)) {
      decisions.push_back(std::move(decision));
    }
  }
  return decisions;
}

void AgreementClient::pass_down(const Decision& decision) {
  const std::vector<int> hops = core_.next_hops(decision);
  if (hops.empty()) {
    return;
  }
  const base::Bytes bytes = encode(decision);
  for (const int child : hops) {
    parts_.frames.post(child, bytes);
  }
}

// --- the end

void AgreementClient::end_world(const Error& why, bool certain) {
  is_over_ = true;
  std::vector<std::unique_ptr<Pending>> unfinished = std::exchange(unfinished_, {});
  for (auto& pending : parts_.submissions.end_world(why, certain)) {
    unfinished.push_back(std::move(pending));
  }
  parts_.stall_queries.end_world();
  if (fast_path_.holds_request()) {
    unfinished.push_back(fast_path_.take().pending);
  }
  names_.take_all(unfinished);
  arrivals_.take_all(unfinished);
  core_.reported().take_all(unfinished);
  const int64_t now_ns = base::now_ns();
  for (auto& pending : unfinished) {
    parts_.outcomes.complete(std::move(pending), {why.code(), why.what(), why.lost_rank()}, now_ns);
  }
  parts_.outcomes.announce();
  if (formations_) {
    formations_->await_end();
  }
  parts_.outcomes.settle_all(base::Deadline::after_seconds(kCopySeconds), why);
}

void AgreementClient::revoke() noexcept {
  if (parts_.settings.elastic) {
    parts_.outcomes.lose_launched();
  }
  if (runner_ != nullptr) {
    runner_->revoke();
  }
}

}  // namespace farandole::engine
