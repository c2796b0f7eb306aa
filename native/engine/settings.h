// The settings of an engine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "collective/knobs.h"
#include "engine/subtree_tally.h"
#include "engine/tuner.h"
#include "transport/arena.h"
#include "transport/frame_multiplexer.h"

namespace farandole::engine {

struct EngineSettings {
  collective::Knobs knobs;                            // rank 0's count for all, as do the next three
  std::vector<std::string> fixed_knobs;               // names of those that were set: they are neither tuned nor kept
  uint64_t piece_bytes = uint64_t{3} << 19;           // of staging, which has transport::kWindows of them
  std::string algorithm;                              // a name from the table, or empty
  int64_t spin_ns = transport::WaitPolicy{}.spin_ns;  // how long a wait looks before it sleeps
  // Some ranks wait for others: when rank 0 warns, and when it ends the world. 0: never.
  double stall_warning_seconds = 60;
  double stall_shutdown_seconds = 0;
  bool autotune = false;  // rank 0's counts
  TunerSettings tuner;
  // How ranks report to rank 0: see choose_fanout(), which decides if nothing is set. The same on all ranks, which the
  // first decision of a world makes sure of, as of the next ones.
  std::optional<int> agreement_fanout;
  int64_t report_hold_ns = SubtreeTally::kHoldNs;  // how long a rank with children holds back what some of them report
  // The same on all ranks, which the first decision of a world makes sure of: what was asked for, and its rows.
  std::string backend = "native";
  std::span<const backend::Row* const> backends = backend::rows_for("native");
  backend::GpuMode gpu = backend::GpuMode::kAuto;  // the same on all ranks, too
  std::string nccl_library;                        // a path that is asked for, or empty
  // Whether another world may follow. What is launched on a GPU is then done before the program uses it, so that it can
  // be aborted with its world.
  bool elastic = false;
  backend::GpuPatience gpu_patience;
};

}  // namespace farandole::engine
