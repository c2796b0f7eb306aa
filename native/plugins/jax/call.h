// One run of a collective of arrays in host memory: from XLA's buffers to requests of the engine, and back.
//
// The engine reads the arguments and writes the results where they lie. A call is begun in a thread of XLA's, which
// makes the engine's progress itself for a moment. If the call is not done by then, XLA gets a future, which is
// completed when the engine calls back. No thread of XLA's waits for another rank, so that programs with more
// collectives at a time than XLA has threads cannot block each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "capi/farandole.h"
#include "plugins/engine_link.h"
#include "plugins/jax/call_site.h"
#include "plugins/jax/failure.h"
#include "plugins/jax/xla_ffi.h"

namespace farandole::jax {

class Call {
 public:
  // Runs the call site of a program with the arguments of a frame. NULL: it is done, or XLA's future will be completed.
  static xla::Error* run(CallSite& site, xla::CallFrame& frame);

 private:
  struct Part {
    Call* call = nullptr;
    const Member* member = nullptr;
    const void* input = nullptr;
    void* output = nullptr;
    void* residual = nullptr;
  };

  Call(const Collective& collective, OnDevice& site, const xla::CallFrame& frame);
  ~Call();

  static void take_residual(Part& part, const xla::Buffer& before, const xla::Buffer& after);
  void submit(const plugins::EngineLink::Use& use);
  void hand_over(const std::vector<farandole_request>& requests);
  farandole_request request_of(Part& part) const;
  bool is_alone(const std::vector<int32_t>& ranks) const;
  bool may_make_progress() const;
  void prepare_memory() const;

  static void part_done(void* part, uint64_t handle, int status, const char* error, int32_t lost_rank);
  void check_rows(const Part& part, uint64_t handle);
  void fail(const Failure& failure);
  std::optional<Failure> end();
  void complete();

  const Collective& collective_;
  OnDevice& site_;
  const xla::Api& api_;
  std::vector<Part> parts_;
  farandole_engine* engine_ = nullptr;
  int32_t rank_ = -1;
  std::atomic<size_t> open_{1};  // parts that are not done, and the call's own submission
  xla::Future* future_ = nullptr;
  std::mutex failure_mutex_;
  std::optional<Failure> failure_;
};

}  // namespace farandole::jax
