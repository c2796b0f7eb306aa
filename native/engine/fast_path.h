// The one request of this worker that is on the fast path, agreement without messages: see shm_agreement.h.
//
// Threads: for the thread with the progress lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/messages.h"
#include "engine/pending.h"
#include "engine/shm_agreement.h"
#include "transport/mesh.h"

namespace farandole::engine {

struct FastPathRequest {
  std::unique_ptr<Pending> pending;
  uint32_t bit = kNoBit;
  uint32_t number = 0;  // of the decision that it becomes if all announce it
};

class FastPath {
 public:
  using State = ShmAgreement::State;

  // `mesh` outlives it.
  explicit FastPath(transport::Mesh& mesh);

  bool holds_request() const noexcept { return request_.pending != nullptr; }
  // Whether a request may be announced for the decision of this number.
  bool is_open(uint32_t number) const noexcept { return agreement_.is_open(number); }
  // Holds the request from now on. announce() follows.
  Pending& hold(FastPathRequest request) noexcept;
  // Returns false if the workers cannot agree on it here; then it is to be taken back. Calls `as_last` first if all
  // other workers have announced it.
  bool announce(const std::function<void()>& as_last);
  // Returns the worker that has called `as_last`. The request's state is kAll.
  int last() const noexcept { return agreement_.last(request_.number); }
  // Returns the request, which leaves the fast path.
  FastPathRequest take() noexcept;

  // Returns the state of the request, if there is one. `next` is the number of the next decision.
  State state(uint32_t next) const noexcept;
  // The same, after making sure that it does not succeed later.
  State close_request(uint32_t next) noexcept;
  // When the request, which is there, was submitted.
  int64_t submitted_ns() const noexcept { return request_.pending->submitted_ns; }
  // Whether it is to be run or reported now.
  bool is_settled(uint32_t next) const noexcept;

  // See ShmAgreement.
  State close(uint32_t number) noexcept { return settle(agreement_.close(number)); }
  void forbid() noexcept { agreement_.forbid(); }

 private:
  // Wakes the workers that sleep until a number is settled, if this change has settled it.
  State settle(ShmAgreement::Change change) noexcept;

  transport::Mesh& mesh_;
  ShmAgreement agreement_;
  FastPathRequest request_;  // no pending: there is none
};

}  // namespace farandole::engine
