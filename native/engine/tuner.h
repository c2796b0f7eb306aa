// Finds the knobs with which a job's steps of communication are fastest, while the job runs. No clock, no I/O: its
// decisions depend only on what it is told.
//
// One *sample* is some steps run with the same knobs; its score is the median of their bytes per second. Samples go
// through four phases: *warm-up*, whose samples say nothing; the *search*, which tries all values of one dial after the
// other, and takes the best if the difference is larger than chance explains, also when both are measured once more;
// *verification*, which alternates between the values found and the defaults, so that a change of the machine's load
// affects both alike; and the *end*, at the values found, or at the defaults if these were no worse. Values that were
// kept from an earlier job are only verified; if they no longer help, the search follows.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "collective/group.h"
#include "collective/knobs.h"

namespace farandole::engine {

// The values that may be tried for one knob, ascending.
struct Dial {
  collective::KnobName knob;
  std::vector<uint64_t> values;
};

// Returns the values that are worth trying in a world with this topology; none in a world of one. `fixed` are the names
// of knobs that the user has set, which are left alone.
std::vector<Dial> dials_for(const collective::Topology& topology, uint64_t piece_bytes,
                            const std::vector<std::string>& fixed);

struct TunerSettings {
  int warmup_samples = 3;
  int steps_per_sample = 10;
  int max_samples = 40;  // after the warm-up; verification gets what it needs in any case
  // Steps of microseconds are measured until their sum can be trusted, or there have been a thousand.
  int64_t shortest_sample_ns = 20'000'000;
};

// It has more fields than most classes: the samples, which all phases share, and the progress of each phase. A phase
// that is over leaves its findings to the next one, so classes for the phases would pass most of their state on.
class Tuner {
 public:
  // `kept` are knobs that an earlier job has found.
  Tuner(TunerSettings settings, const collective::Knobs& defaults, const std::optional<collective::Knobs>& kept,
        std::vector<Dial> dials);

  // Records that a step moved `bytes` in this time, with knobs(). Returns whether the knobs change from now on.
  bool observe(uint64_t bytes, int64_t ns);

  const collective::Knobs& knobs() const noexcept { return knobs_; }
  bool done() const noexcept { return phase_ == Phase::kDone; }
  // The result of the verification: the speed as a multiple of the defaults'. 1 until then, and if the defaults stay.
  double gain() const noexcept { return gain_; }
  // Whether knobs() are worth keeping: found or kept, and verified.
  bool found() const noexcept { return done() && knobs_ != defaults_; }
  // The values that have been found, and their gain, in one line.
  std::string summary() const;

  struct Sample {
    const char* phase;
    collective::Knobs knobs;
    double bytes_per_second;
    std::string why;  // this was measured
  };
  const std::vector<Sample>& samples() const noexcept { return samples_; }
  const char* phase() const noexcept { return name_of(phase_); }

 private:
  enum class Phase { kWarmUp, kSearch, kVerify, kDone };
  static const char* name_of(Phase phase) noexcept;

  // Each takes the next sample under way, or goes on to the next phase.
  void end_sample();
  void end_warm_up();
  void begin_search();
  void search_on();
  void begin_verification(const collective::Knobs& candidate);
  void verify_on();
  bool wins_every_round() const;
  void end(const collective::Knobs& knobs, double gain);
  // Each begins the next measurement for the dial that is turned, and returns whether there is one.
  bool measure_next_value();
  bool measure_rivals();
  bool measure_queued(const char* why);
  void measure(const collective::Knobs& knobs, std::string why);
  // The median over the samples of this phase; nothing when there is none.
  std::optional<double> score_of(const collective::Knobs& knobs) const;
  bool is_better(const collective::Knobs& knobs, const collective::Knobs& than) const;

  const TunerSettings settings_;
  const collective::Knobs defaults_;
  const std::optional<collective::Knobs> kept_;
  const std::vector<Dial> dials_;

  Phase phase_ = Phase::kWarmUp;
  collective::Knobs knobs_;
  std::string why_;
  std::vector<double> rates_;  // of the steps of this sample
  int64_t sample_ns_ = 0;
  bool settling_ = false;  // the knobs have just changed: a step that began with others says nothing
  std::vector<Sample> samples_;
  size_t phase_from_ = 0;                // the first sample of this phase
  std::deque<collective::Knobs> queue_;  // to be measured next, whether or not they were before

  collective::Knobs best_;
  size_t dial_ = 0;
  size_t value_ = 0;                        // the next one of that dial
  std::optional<collective::Knobs> rival_;  // looked better than best_, which is being checked
  collective::Knobs candidate_;             // what is verified
  bool candidate_was_kept_ = false;
  double gain_ = 1;
};

// Cuts the stream of finished requests into steps: a step ends where a name comes for the second time.
class StepMeter {
 public:
  struct Step {
    uint64_t bytes;
    int64_t ns;  // from its first submit to its last completion
  };
  // `name` is a number that stands for a request's name. Returns the step that this request is no longer part of.
  std::optional<Step> add(uint32_t name, uint64_t bytes, int64_t submitted_ns, int64_t done_ns);

 private:
  std::unordered_set<uint32_t> names_;  // that this step has had
  uint64_t bytes_ = 0;
  int64_t first_ns_ = INT64_MAX;
  int64_t last_ns_ = INT64_MIN;
};

}  // namespace farandole::engine
