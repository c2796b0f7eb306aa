// The fast path: the engine's part in agreement without messages. See shm_agreement.h.
#include <utility>

#include "engine/engine.h"

namespace farandole::engine {

using base::Code;
using base::Error;

bool Engine::try_fast_path(std::unique_ptr<Pending>& pending) {
  if (coordinator_ && events_.are_read()) {
    shm_agreement_->forbid();  // whoever reads events wants to see when each rank was ready
  }
  const Request& request = pending->request;
  if (!pending->is_waited_for || in_flight_ > 1 || request.group != 0 || request.signature.kind == Kind::kTransfer) {
    return false;
  }
  const uint32_t bit = bit_of(request);
  const uint32_t number = decisions_ + 1;
  if (bit == kNoBit || !shm_agreement_->is_open(number)) {
    return false;
  }
  // Before staging, which ends with an error when the world does: then it fails with the others.
  fast_path_ = {std::move(pending), bit, number};
  stage(*fast_path_.pending);
  if (shm_agreement_->announce(number, bit) != ShmAgreement::State::kClosed) {
    return true;
  }
  pending = std::exchange(fast_path_, {}).pending;
  pending->is_staged = false;
  return false;
}

ShmAgreement::State Engine::fast_path_state() const {
  if (fast_path_.pending == nullptr) {
    return ShmAgreement::State::kOpen;
  }
  return fast_path_.number == decisions_ + 1 ? shm_agreement_->look(fast_path_.number) : ShmAgreement::State::kClosed;
}

bool Engine::fast_path_is_settled() const {
  const ShmAgreement::State state = fast_path_state();
  return state == ShmAgreement::State::kAll || state == ShmAgreement::State::kClosed;
}

void Engine::settle_fast_path(transport::Notify notify) {
  const ShmAgreement::State state = fast_path_state();
  if (state == ShmAgreement::State::kAll) {
    run_fast_path();
  } else if (state == ShmAgreement::State::kClosed) {
    report_fast_path(notify);
  }
}

void Engine::run_fast_path() {
  FastPathRequest request = std::exchange(fast_path_, {});
  Decision decision;
  decision.number = request.number;
  decision.known.set(request.bit);
  expect(std::move(request.pending), request.bit);
  obey(decision);
  const base::MutexLock lock(mutex_);
  ++stats_.fast_path_rounds;
}

void Engine::report_fast_path(transport::Notify notify) {
  Ready ready;
  std::unique_ptr<Pending> pending = std::exchange(fast_path_, {}).pending;
  ready.age_ns = base::now_ns() - pending->submitted_ns;
  pending->is_staged = false;
  report(std::move(pending), ready);
  send_ready(ready, notify);
}

void Engine::end_fast_path() {
  while (fast_path_.pending != nullptr && !world_over_) {
    ShmAgreement::State state = fast_path_state();
    if (state == ShmAgreement::State::kOpen) {
      state = shm_agreement_->close(fast_path_.number);
    }
    if (state == ShmAgreement::State::kAll) {
      run_fast_path();
    } else if (state == ShmAgreement::State::kClosed) {
      report_fast_path(transport::Notify::kNow);
      receive_messages();
    } else {
      // The decision that says what has become of it is on its way.
      frames_->wait([this] { return frames_->has_message(); });
      receive_messages();
    }
  }
}

void Engine::obey_in_order(const Decision& decision) {
  if (decision.type != Decision::Type::kStallQuery) {
    if (fast_path_.pending != nullptr && decision.number == decisions_ + 2) {
      run_fast_path();
    }
    if (decision.number != decisions_ + 1) {
      throw Error(Code::kInternal, "decision " + std::to_string(decision.number) + " came after decision " +
                                       std::to_string(decisions_) + ". This is a bug of farandole's");
    }
  }
  obey(decision);
}

}  // namespace farandole::engine
