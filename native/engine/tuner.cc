#include "engine/tuner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace farandole::engine {
namespace {

using collective::kKnobNames;
using collective::KnobName;
using collective::Knobs;

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

// The fraction by which one median must exceed another for the difference to count.
constexpr double kWorthwhile = 0.02;
constexpr size_t kMostStepsPerSample = 1000;
constexpr int kRoundsOfVerification = 3;
// Names that never come again, such as those of unnamed requests, would otherwise make the whole job one step.
constexpr size_t kMostRequestsPerStep = 4096;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) {
    return *middle;
  }
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

std::string format_value(uint64_t value) {
  if (value >= kMiB && value % kMiB == 0) {
    return std::to_string(value / kMiB) + " MiB";
  }
  return value >= kKiB && value % kKiB == 0 ? std::to_string(value / kKiB) + " KiB" : std::to_string(value);
}

std::string format_setting(const KnobName& knob, uint64_t value) { return knob.name + (" " + format_value(value)); }

std::string format_difference(const Knobs& knobs, const Knobs& from) {
  std::string text;
  for (const KnobName& knob : kKnobNames) {
    if (knobs.*knob.knob != from.*knob.knob) {
      text += (text.empty() ? "" : ", ") + format_setting(knob, knobs.*knob.knob);
    }
  }
  return text;
}

KnobName named(std::string_view name) {
  return *std::ranges::find_if(kKnobNames, [&](const KnobName& knob) { return knob.name == name; });
}

}  // namespace

std::vector<Dial> dials_for(const collective::Topology& topology, uint64_t piece_bytes,
                            const std::vector<std::string>& fixed) {
  std::vector<Dial> dials;
  const auto add = [&](const char* name, std::vector<uint64_t> values) {
    if (std::ranges::find(fixed, name) == fixed.end() && values.size() > 1) {
      dials.push_back({named(name), std::move(values)});
    }
  };
  const auto up_to = [](std::vector<uint64_t> values, uint64_t most) {
    std::erase_if(values, [&](uint64_t value) { return value > most; });
    return values;
  };
  if (topology.members < 2) {
    return dials;
  }
  // The most important ones first: a job may end, or the samples be used up, before all have been tried.
  add("fusion_threshold", {kMiB, 4 * kMiB, 16 * kMiB, 32 * kMiB, 64 * kMiB, 128 * kMiB});
  add("chunk_bytes", {64 * kKiB, 128 * kKiB, 256 * kKiB, 512 * kKiB, kMiB, 4 * kMiB});
  if (topology.hosts > 1) {
    add("ring_bytes", {16 * kKiB, 64 * kKiB, 256 * kKiB, kMiB});
    add("link_chunk_bytes", {64 * kKiB, 256 * kKiB, kMiB});
  } else {
    add("small_bytes", up_to({4 * kKiB, 16 * kKiB, 64 * kKiB, 256 * kKiB}, piece_bytes));
  }
  return dials;
}

Tuner::Tuner(TunerSettings settings, const Knobs& defaults, const std::optional<Knobs>& kept, std::vector<Dial> dials)
    : settings_(settings),
      defaults_(defaults),
      kept_(kept),
      dials_(std::move(dials)),
      knobs_(kept.value_or(defaults)),
      why_("warm-up"),
      best_(defaults),
      candidate_(defaults) {
  if (dials_.empty()) {
    end(defaults_, 1);
  } else if (settings_.warmup_samples <= 0) {
    end_warm_up();
  }
}

const char* Tuner::name_of(Phase phase) noexcept {
  switch (phase) {
    case Phase::kWarmUp:
      return "warm-up";
    case Phase::kSearch:
      return "search";
    case Phase::kVerify:
      return "verification";
    case Phase::kDone:
      break;
  }
  return "done";
}

bool Tuner::observe(uint64_t bytes, int64_t ns) {
  if (done() || bytes == 0 || ns <= 0 || std::exchange(settling_, false)) {
    return false;
  }
  rates_.push_back(static_cast<double>(bytes) * 1e9 / static_cast<double>(ns));
  sample_ns_ += ns;
  const bool enough = rates_.size() >= static_cast<size_t>(std::max(1, settings_.steps_per_sample));
  if (!enough || (sample_ns_ < settings_.shortest_sample_ns && rates_.size() < kMostStepsPerSample)) {
    return false;
  }
  const Knobs before = knobs_;
  end_sample();
  return knobs_ != before;
}

void Tuner::end_sample() {
  samples_.push_back({name_of(phase_), knobs_, median(std::exchange(rates_, {})), why_});
  sample_ns_ = 0;
  switch (phase_) {
    case Phase::kWarmUp:
      if (samples_.size() >= static_cast<size_t>(settings_.warmup_samples)) {
        end_warm_up();
      }
      break;
    case Phase::kSearch:
      search_on();
      break;
    case Phase::kVerify:
      verify_on();
      break;
    case Phase::kDone:
      break;
  }
}

void Tuner::end_warm_up() {
  if (kept_ && *kept_ != defaults_) {
    candidate_was_kept_ = true;
    begin_verification(*kept_);
  } else {
    begin_search();
  }
}

void Tuner::begin_search() {
  phase_ = Phase::kSearch;
  phase_from_ = samples_.size();
  measure(defaults_, "the defaults");
}

void Tuner::search_on() {
  while (dial_ < dials_.size() && samples_.size() - phase_from_ < static_cast<size_t>(settings_.max_samples)) {
    if (measure_next_value() || measure_rivals()) {
      return;
    }
    ++dial_;
    value_ = 0;
  }
  begin_verification(best_);
}

bool Tuner::measure_next_value() {
  const Dial& dial = dials_[dial_];
  while (value_ < dial.values.size()) {
    Knobs knobs = best_;
    knobs.*dial.knob.knob = dial.values[value_++];
    if (!score_of(knobs)) {
      measure(knobs, format_setting(dial.knob, knobs.*dial.knob.knob));
      return true;
    }
  }
  return false;
}

// The best of many may just be the luckiest of many. So it and the value that it would replace are measured once more.
bool Tuner::measure_rivals() {
  if (measure_queued("once more")) {
    return true;
  }
  if (rival_) {
    if (is_better(*rival_, best_)) {
      best_ = *rival_;
    }
    rival_.reset();
    return false;
  }
  const Dial& dial = dials_[dial_];
  Knobs fastest = best_;
  for (const uint64_t value : dial.values) {
    Knobs knobs = best_;
    knobs.*dial.knob.knob = value;
    fastest = score_of(knobs) > score_of(fastest) ? knobs : fastest;
  }
  if (!is_better(fastest, best_)) {
    return false;
  }
  rival_ = fastest;
  queue_ = {best_, fastest};
  return measure_queued("once more");
}

bool Tuner::measure_queued(const char* why) {
  if (queue_.empty()) {
    return false;
  }
  const Knobs next = queue_.front();
  queue_.pop_front();
  measure(next, why);
  return true;
}

void Tuner::begin_verification(const Knobs& candidate) {
  if (candidate == defaults_) {
    end(defaults_, 1);
    return;
  }
  phase_ = Phase::kVerify;
  phase_from_ = samples_.size();
  candidate_ = candidate;
  queue_.clear();
  for (int round = 0; round < kRoundsOfVerification; ++round) {
    queue_.push_back(defaults_);
    queue_.push_back(candidate);
  }
  verify_on();
}

void Tuner::verify_on() {
  if (measure_queued(candidate_was_kept_ ? "what was kept, and the defaults" : "what was found, and the defaults")) {
    return;
  }
  const double gain = *score_of(candidate_) / *score_of(defaults_);
  if (candidate_was_kept_ ? gain > 1 : gain > 1 + kWorthwhile && wins_every_round()) {
    end(candidate_, gain);
  } else if (std::exchange(candidate_was_kept_, false)) {
    begin_search();
  } else {
    end(defaults_, 1);
  }
}

// Chance alone leads to this in one of eight cases.
bool Tuner::wins_every_round() const {
  for (size_t i = phase_from_; i + 1 < samples_.size(); i += 2) {
    if (samples_[i].bytes_per_second >= samples_[i + 1].bytes_per_second) {
      return false;
    }
  }
  return true;
}

void Tuner::end(const Knobs& knobs, double gain) {
  phase_ = Phase::kDone;
  knobs_ = knobs;
  gain_ = gain;
}

void Tuner::measure(const Knobs& knobs, std::string why) {
  settling_ = knobs != knobs_;
  knobs_ = knobs;
  why_ = std::move(why);
}

std::optional<double> Tuner::score_of(const Knobs& knobs) const {
  std::vector<double> scores;
  for (size_t i = phase_from_; i < samples_.size(); ++i) {
    if (samples_[i].knobs == knobs) {
      scores.push_back(samples_[i].bytes_per_second);
    }
  }
  return scores.empty() ? std::nullopt : std::optional(median(std::move(scores)));
}

bool Tuner::is_better(const Knobs& knobs, const Knobs& than) const {
  return *score_of(knobs) > *score_of(than) * (1 + kWorthwhile);
}

std::string Tuner::summary() const {
  if (!done()) {
    return "autotuning is at its " + std::string(phase()) + ", after " + std::to_string(samples_.size()) + " samples";
  }
  if (dials_.empty()) {
    return "autotuning has nothing to try: there is one worker only, or every value is set";
  }
  const std::string after = "autotuning ended after " + std::to_string(samples_.size()) + " samples: ";
  if (!found()) {
    return after + "nothing was faster than the defaults";
  }
  char gain[32];
  std::snprintf(gain, sizeof gain, "%.2f", gain_);
  return after + gain + " times the speed of the defaults, with " + format_difference(knobs_, defaults_);
}

std::optional<StepMeter::Step> StepMeter::add(uint32_t name, uint64_t bytes, int64_t submitted_ns, int64_t done_ns) {
  std::optional<Step> ended;
  if (names_.contains(name) || names_.size() >= kMostRequestsPerStep) {
    ended = Step{bytes_, last_ns_ - first_ns_};
    *this = {};
  }
  names_.insert(name);
  bytes_ += bytes;
  first_ns_ = std::min(first_ns_, submitted_ns);
  last_ns_ = std::max(last_ns_, done_ns);
  return ended;
}

}  // namespace farandole::engine
