// One run of a collective of arrays in the memory of a GPU, in the thread of XLA's that launches the program there.
//
// The collective begins, on the GPU, after what XLA has put into its stream, and what XLA puts there afterwards begins
// after the collective. The thread waits until the collective is launched, which takes as long as the last rank takes
// to come to it: before that, there is nothing for the stream to wait for. XLA has such a thread for each GPU, and each
// launches the collectives of its programs in their order, so those of two GPUs do not keep each other from going on.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "capi/farandole.h"
#include "plugins/engine_link.h"
#include "plugins/jax/call_site.h"
#include "plugins/jax/xla_ffi.h"

namespace farandole::jax {

class DeviceCall {
 public:
  // Runs the call site of a program with the arguments of a frame. NULL: the results are on their way in XLA's stream.
  static xla::Error* run(CallSite& site, const xla::CallFrame& frame);

 private:
  DeviceCall(const Collective& collective, OnDevice& site, const xla::CallFrame& frame);
  ~DeviceCall();
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;

  void launch();
  std::vector<farandole_request> requests() const;
  int wait_on(const std::vector<uint64_t>& handles);
  void check_rows(const std::vector<uint64_t>& handles) const;
  void clear_results() const;

  const Collective& collective_;
  OnDevice& site_;
  const xla::CallFrame& frame_;
  const int32_t device_;
  void* const stream_;
  std::vector<farandole_option> options_;
  // Keeps the engine attached. Given up when the engine is wanted back: see wait_on().
  std::optional<plugins::EngineLink::Use> use_;
  farandole_engine* engine_ = nullptr;
};

}  // namespace farandole::jax
