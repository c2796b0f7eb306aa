// A request on its way through the engine: from submit() to its end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "engine/completion.h"
#include "engine/events.h"
#include "engine/host_mirror.h"
#include "engine/request.h"

namespace farandole::engine {

// A request as users submit it.
struct Request {
  uint32_t group = 0;
  std::string name;
  Signature signature;
  const void* input = nullptr;
  void* output = nullptr;
  std::vector<int64_t> splits{};  // alltoall: rows for each member; empty: equal parts
  float* residual = nullptr;      // compressed allreduce: what was not sent before, and then what is not sent now
  Callback callback{};            // null: none
  // In device memory: the device's number, and its stream after whose present work the input is complete.
  int device = -1;
  void* stream = nullptr;
  // While another request of its name is in flight, it waits for that one instead of being refused (name_queue.h). Such
  // a name recurs.
  bool in_turn = false;
};

// Owned by the queue of submissions, then by the thread that makes progress.
struct Pending {
  Request request;
  std::shared_ptr<Completion> completion;  // null when this rank is absent: it has joined and never asked
  int64_t submitted_ns = 0;
  int64_t waited_ns = 0;      // until the last member was ready
  int64_t negotiated_ns = 0;  // from then until this rank knew
  uint32_t name_number = kNone;
  uint32_t bucket = kNone;
  bool is_waited_for = false;  // by a user, from the start
  // What runs it; no backend: agreement is all it takes. Chosen when it is staged, or else when it is agreed on.
  backend::Backend* backend = nullptr;
  collective::Choice choice{};
  bool is_staged = false;  // see backend::Backend::stage
  int reduced_by = -1;     // if it is staged: the rank that called backend::Backend::reduce_staged
  // In device memory: the mark after which the input is complete; its mirror, or null if its backend takes the tensor
  // where it is.
  device::MarkPointer ready;
  std::unique_ptr<HostMirror> mirror;
  bool is_lost = false;  // it was launched, and is going to be aborted

  // The GPU on which its backend runs it; null: it runs in host memory.
  device::Gpu* gpu() const noexcept { return ready == nullptr || mirror != nullptr ? nullptr : &ready->gpu(); }
};

// An agreed request on its way into a bucket.
struct Runnable {
  std::unique_ptr<Pending> pending;
  std::vector<int64_t> sizes{};  // of an allgather
};

}  // namespace farandole::engine
