// Knobs: which ones a world begins with, how they are tuned on rank 0, and how all ranks change them at one point of
// the common order.
#include <algorithm>
#include <utility>

#include "engine/engine.h"

namespace farandole::engine {

using base::Code;
using base::Error;
using collective::Choice;
using collective::Knobs;

void Engine::keep(const Knobs& knobs) {
  const base::MutexLock lock(mutex_);
  kept_knobs_ = knobs;
  for (const collective::KnobName& knob : collective::kKnobNames) {
    if (std::ranges::find(settings_.fixed_knobs, knob.name) != settings_.fixed_knobs.end()) {
      (*kept_knobs_).*knob.knob = settings_.knobs.*knob.knob;
    }
  }
}

Knobs Engine::begin_tuning() {
  std::optional<Knobs> kept;
  {
    const base::MutexLock lock(mutex_);
    kept = kept_knobs_;
  }
  if (!settings_.autotune) {
    return kept.value_or(settings_.knobs);
  }
  const collective::Topology topology = collective::topology_of(memberships_.at(0).group, mesh_->hosts());
  tuning_ = std::make_unique<Tuning>(Tuning{
      Tuner(settings_.tuner, settings_.knobs, kept, dials_for(topology, settings_.piece_bytes, settings_.fixed_knobs)),
      StepMeter()});
  const Knobs knobs = tuning_->tuner.knobs();
  report_tuning();
  return knobs;
}

void Engine::measure_for_tuning(const Pending& pending) {
  const uint64_t bytes = pending.request.signature.bytes();
  if (bytes == 0) {
    return;
  }
  const auto step = tuning_->meter.add(pending.name_number, bytes, pending.submitted_ns, base::now_ns());
  if (!step) {
    return;
  }
  const size_t samples = tuning_->tuner.samples().size();
  tuning_->tuner.observe(step->bytes, step->ns);
  tuning_changed_ |= tuning_->tuner.samples().size() != samples;
}

// After a decision has been obeyed, so that all requests of it have run alike.
void Engine::tune() {
  if (!std::exchange(tuning_changed_, false)) {
    return;
  }
  const Knobs knobs = tuning_->tuner.knobs();
  if (knobs != backend_->knobs()) {
    Decision decision;
    decision.type = Decision::Type::kTune;
    decision.knobs = knobs;
    issue(decision);
  }
  report_tuning();
}

void Engine::report_tuning() {
  const Tuner& tuner = tuning_->tuner;
  {
    const base::MutexLock lock(mutex_);
    tuning_report_ = {true, tuner.done(), tuner.found(), tuner.gain(), {}, tuner.samples(), tuner.summary()};
  }
  if (tuner.done()) {
    tuning_.reset();
  }
}

void Engine::obey_tune(const Decision& decision) {
  backend_->set_knobs(decision.knobs);
  const base::MutexLock lock(mutex_);
  knobs_ = backend_->knobs();
}

TuningReport Engine::tuning() const {
  const base::MutexLock lock(mutex_);
  TuningReport report = tuning_report_;
  report.knobs = knobs_;
  return report;
}

Choice Engine::choose(Kind kind, ReduceOp op, uint32_t group, size_t bytes) const {
  const base::MutexLock lock(mutex_);
  if (ended_) {
    throw *ended_;
  }
  const auto found = groups_.find(group);
  if (found == groups_.end()) {
    throw Error(Code::kInvalidArgument, "there is no group " + std::to_string(group));
  }
  return choose_for(kind, op, collective::topology_of(found->second, mesh_->hosts()), bytes, knobs_, algorithm_);
}

Choice choose_for(Kind kind, ReduceOp op, const collective::Topology& topology, size_t bytes, const Knobs& knobs,
                  const std::string& wanted) {
  switch (kind) {
    case Kind::kAllreduce:
      return op == ReduceOp::kAdasum ? collective::choose_adasum()
                                     : collective::choose_allreduce(topology, bytes, knobs, wanted);
    case Kind::kAllgather:
      return collective::choose_allgather(topology, wanted);
    case Kind::kBroadcast:
      return collective::choose_broadcast(topology, wanted);
    case Kind::kAlltoall:
      return collective::choose_alltoall(topology, wanted);
    case Kind::kReducescatter:
      return collective::choose_reducescatter(topology, wanted);
    case Kind::kTransfer:
      return collective::choose_transfer();
    default:
      throw Error(Code::kInvalidArgument,
                  std::string(name_of(kind)) + " needs no algorithm: agreement is all it takes");
  }
}

}  // namespace farandole::engine
