#include "engine/tuning_driver.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace farandole::engine {

using collective::Knobs;

void TuningDriver::keep(const Knobs& knobs) {
  const base::MutexLock lock(mutex_);
  kept_ = knobs;
  for (const collective::KnobName& knob : collective::kKnobNames) {
    if (std::ranges::find(settings_.fixed_knobs, knob.name) != settings_.fixed_knobs.end()) {
      (*kept_).*knob.knob = settings_.knobs.*knob.knob;
    }
  }
}

TuningReport TuningDriver::report() const {
  const base::MutexLock lock(mutex_);
  TuningReport report = report_;
  report.knobs = knobs_;
  return report;
}

Knobs TuningDriver::knobs() const {
  const base::MutexLock lock(mutex_);
  return knobs_;
}

std::string TuningDriver::algorithm() const {
  const base::MutexLock lock(mutex_);
  return algorithm_;
}

void TuningDriver::begin_world() {
  tuning_.reset();
  changed_ = false;
  const base::MutexLock lock(mutex_);
  report_ = {};
}

Knobs TuningDriver::begin_tuning(const collective::Topology& topology) {
  std::optional<Knobs> kept;
  {
    const base::MutexLock lock(mutex_);
    kept = kept_;
  }
  if (!settings_.autotune) {
    return kept.value_or(settings_.knobs);
  }
  tuning_ = std::make_unique<Tuning>(Tuning{
      Tuner(settings_.tuner, settings_.knobs, kept, dials_for(topology, settings_.piece_bytes, settings_.fixed_knobs)),
      StepMeter()});
  const Knobs knobs = tuning_->tuner.knobs();
  update_report();
  return knobs;
}

void TuningDriver::measure(const Pending& pending) {
  // Tensors that go to a GPU and back show little about the knobs.
  if (tuning_ == nullptr || pending.request.signature.memory == backend::MemoryKind::kDevice) {
    return;
  }
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
  changed_ |= tuning_->tuner.samples().size() != samples;
}

std::optional<Knobs> TuningDriver::next(const Knobs& in_use) {
  if (!std::exchange(changed_, false)) {
    return std::nullopt;
  }
  const Knobs knobs = tuning_->tuner.knobs();
  update_report();
  return knobs != in_use ? std::optional(knobs) : std::nullopt;
}

void TuningDriver::use(const Knobs& knobs) {
  const base::MutexLock lock(mutex_);
  knobs_ = knobs;
}

void TuningDriver::use(const Knobs& knobs, const std::string& algorithm) {
  const base::MutexLock lock(mutex_);
  knobs_ = knobs;
  algorithm_ = algorithm;
}

void TuningDriver::update_report() {
  const Tuner& tuner = tuning_->tuner;
  {
    const base::MutexLock lock(mutex_);
    report_ = {true, tuner.done(), tuner.found(), tuner.gain(), {}, tuner.samples(), tuner.summary()};
  }
  if (tuner.done()) {
    tuning_.reset();
  }
}

}  // namespace farandole::engine
