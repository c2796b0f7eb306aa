// Knobs: which ones a world begins with, how rank 0 tunes them, and which ones are in use.
//
// All ranks change their knobs by a decision, that is, at one point of the common order; the engine issues it when
// next() returns knobs.
//
// Threads: keep(), report(), knobs() and algorithm() are for any thread; everything else is for the thread with the
// progress lock.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "collective/group.h"
#include "collective/knobs.h"
#include "engine/pending.h"
#include "engine/settings.h"
#include "engine/tuner.h"

namespace farandole::engine {

// The progress of autotuning.
struct TuningReport {
  bool on = false;
  bool done = false;
  bool found = false;       // knobs that are worth keeping
  double gain = 1;          // times the speed of the defaults
  collective::Knobs knobs;  // in use
  std::vector<Tuner::Sample> samples;
  std::string summary;
};

class TuningDriver {
 public:
  // `settings` must outlive this.
  explicit TuningDriver(const EngineSettings& settings) : settings_(settings) {}

  // Sets the initial values of worlds that begin from now on, unless the settings give others.
  void keep(const collective::Knobs& knobs);
  TuningReport report() const;
  // The knobs and the algorithm that were decided last.
  collective::Knobs knobs() const;
  std::string algorithm() const;

  void begin_world();
  // Rank 0: the knobs that a world begins with, and a tuner if they are to be tuned.
  collective::Knobs begin_tuning(const collective::Topology& topology);
  // A request is done.
  void measure(const Pending& pending);
  // Other knobs than those in use, if the tuner wants to try some. After a decision has been obeyed, so that all
  // requests of it have run alike.
  std::optional<collective::Knobs> next(const collective::Knobs& in_use);
  void use(const collective::Knobs& knobs);
  void use(const collective::Knobs& knobs, const std::string& algorithm);

 private:
  void update_report();

  const EngineSettings& settings_;
  mutable base::Mutex mutex_;
  std::optional<collective::Knobs> kept_ GUARDED_BY(mutex_);
  collective::Knobs knobs_ GUARDED_BY(mutex_);
  std::string algorithm_ GUARDED_BY(mutex_);
  TuningReport report_ GUARDED_BY(mutex_);

  // --- with the progress lock
  struct Tuning {
    Tuner tuner;
    StepMeter meter;
  };
  std::unique_ptr<Tuning> tuning_;  // null: off, or done
  bool changed_ = false;            // a sample has ended since next() was called
};

}  // namespace farandole::engine
