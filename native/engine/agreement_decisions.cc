// This worker's part in agreement, after rank 0 has decided: what it does for each type of decision.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "engine/agreement_client.h"

namespace farandole::engine {

using base::Code;
using base::Error;
using collective::Group;
using transport::Notify;

void AgreementClient::obey_in_order(const Decision& decision) {
  if (decision.type != Decision::Type::kStallQuery && fast_path_.holds_request() &&
      decision.number == next_number() + 1) {
    run_fast_path();
  }
  obey(decision);
}

void AgreementClient::obey(const Decision& decision) {
  core_.advance(decision);
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
      runner_->set_knobs(decision.knobs);
      parts_.tuning.use(runner_->knobs());
      break;
    case Decision::Type::kForm:
    case Decision::Type::kUseFormed:
      obey_formation(decision);
      break;
  }
  if (parts_.outcomes.in_flight() > 0) {
    // Other workers must not wait until this one announces a request that it has already reported by message.
    fast_path_.close(next_number());
  }
}

void AgreementClient::apply_initial_config(const Decision& decision) {
  if (decision.backend != parts_.settings.backend) {
    throw base::Error(base::Code::kInvalidArgument, "rank 0 asks for the backend " + decision.backend + ", and rank " +
                                                        std::to_string(rank_) + " for " + parts_.settings.backend +
                                                        ": set FARANDOLE_BACKEND to the same on all workers");
  }
  if (decision.gpu != parts_.settings.gpu) {
    throw base::Error(base::Code::kInvalidArgument,
                      "rank 0 and rank " + std::to_string(rank_) +
                          " treat tensors of GPUs in different ways: set FARANDOLE_GPU to the same on all workers");
  }
  if (decision.fanout != static_cast<uint32_t>(core_.tree().fanout())) {
    throw base::Error(base::Code::kInvalidArgument,
                      "rank 0 and rank " + std::to_string(rank_) +
                          " report in different ways: set FARANDOLE_AGREEMENT_FANOUT to the same on all workers");
  }
  const backend::World world{
      parts_.frames, parts_.arena, {decision.piece_bytes, decision.algorithm, decision.knobs}, &parts_.gpu};
  runner_ =
      std::make_unique<BucketRunner>(parts_.settings.backends, parts_.mesh, world, parts_.recorder, parts_.outcomes);
  formations_.emplace(runner_->formation(), decision.gpu);
  parts_.tuning.use(runner_->knobs(), decision.algorithm);
}

void AgreementClient::obey_formation(const Decision& decision) {
  const Group* const group = core_.group(decision.group);
  if (decision.type == Decision::Type::kForm) {
    if (group != nullptr) {
      formations_->form(*group, decision);
    }
    return;
  }
  if (!decision.obstacle.empty() && rank_ == 0 && parts_.settings.gpu == backend::GpuMode::kAuto) {
    base::log(base::Level::kWarning, 0,
              "tensors of GPUs go through host memory, because NCCL cannot be used: " + decision.obstacle);
  }
  if (formations_->use(decision, group != nullptr)) {
    runner_->use_formed(decision.group);
    parts_.submissions.use_formed(decision.group);
  }
}

void AgreementClient::obey_run(const Decision& decision) {
  runner_->begin(decision.number);
  const Group* group = core_.group(decision.group);
  if (group == nullptr) {
    return;  // not our group
  }
  std::optional<Group> copy;
  if (!decision.agreed.empty()) {  // it may remove the group
    group = &copy.emplace(*group);
  }
  std::vector<Runnable> runnables = take_decided(decision);
  const int64_t now_ns = base::now_ns();
  parts_.recorder.record_round(decision.group, now_ns);
  parts_.outcomes.announce();
  parts_.recorder.measure_agreement(rank_, decision, runnables, now_ns);
  runner_->run(*group, std::move(runnables), now_ns, unfinished_);
  if (const auto knobs = parts_.tuning.next(runner_->knobs())) {
    Decision tune;
    tune.type = Decision::Type::kTune;
    tune.knobs = *knobs;
    issue(tune);
  }
}

std::vector<Runnable> AgreementClient::take_decided(const Decision& decision) {
  AgreementCore::Taken taken;
  try {
    core_.take(decision, taken);
  } catch (...) {
    // The requests that were taken fail with the world.
    for (Runnable& runnable : taken.runnables) {
      unfinished_.push_back(std::move(runnable.pending));
    }
    for (AgreementCore::Taken::Refused& refused : taken.refused) {
      unfinished_.push_back(std::move(refused.pending));
    }
    throw;
  }
  for (const Runnable& runnable : taken.runnables) {
    if (runnable.pending->completion != nullptr) {  // this rank asked for it
      names_.settle(*runnable.pending);
    }
  }
  for (const AgreementCore::Taken::Refused& refused : taken.refused) {
    names_.settle(*refused.pending);
  }
  // Known before the handle is done, so that the group can be used at once.
  for (const Group& group : taken.added) {
    parts_.submissions.add_group(group);
  }
  for (const uint32_t id : taken.removed) {
    parts_.submissions.remove_group(id);
    formations_->remove(id);
    runner_->remove_group(id);
  }
  if (taken.joined) {
    parts_.submissions.end_join();
  }
  for (AgreementCore::Taken::Refused& refused : taken.refused) {
    fail_refused(std::move(refused));
  }
  return std::move(taken.runnables);
}

void AgreementClient::fail_refused(AgreementCore::Taken::Refused refused) {
  const Signature& signature = refused.pending->request.signature;
  if (signature.kind == Kind::kRemoveGroup) {
    parts_.submissions.keep_group(static_cast<uint32_t>(signature.shape[0]));
  }
  parts_.outcomes.complete(std::move(refused.pending), {Code::kMismatch, refused.reason, -1}, base::now_ns());
}

void AgreementClient::receive_stall_query(uint64_t query) {
  Ready ready;
  ready.answers.push_back({query, false, describe_last_request()});
  send_ready(std::move(ready), Notify::kNow);
  parts_.stall_queries.pass_on(query);
}

std::string AgreementClient::describe_last_request() const {
  if (last_request_.name.empty()) {
    return "has asked for nothing yet";
  }
  char age[32];
  std::snprintf(age, sizeof age, "%.3g", static_cast<double>(base::now_ns() - last_request_.submitted_ns) / 1e9);
  const bool waits = names_.holds(last_request_.group, last_request_.name);
  const char* const progress = waits ? "waits for others"
                               : parts_.outcomes.is_launched(last_request_.group, last_request_.name)
                                   ? "is agreed on, but its result is not here yet"
                                   : "is done";
  return "asked last for " + std::string(name_of(last_request_.kind)) + " '" + as_one_line(last_request_.name) + "' " +
         age + " s ago, which " + progress;
}

}  // namespace farandole::engine
