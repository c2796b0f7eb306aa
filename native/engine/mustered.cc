// The engine's part in agreement without messages: see muster.h.
#include <utility>

#include "engine/engine.h"

namespace farandole::engine {

using base::Code;
using base::Error;

bool Engine::muster(std::unique_ptr<Pending>& pending) {
  if (coordinator_ && events_.are_read()) {
    muster_->forbid();  // whoever reads events wants to see when each rank was ready
  }
  const Request& request = pending->request;
  if (!pending->is_waited_for || in_flight_ > 1 || request.group != 0 || request.signature.kind == Kind::kTransfer) {
    return false;
  }
  const uint32_t bit = bit_of(request);
  const uint32_t number = decisions_ + 1;
  if (bit == kNoBit || !muster_->is_open(number)) {
    return false;
  }
  // Before staging, which ends with an error when the world does: then it fails with the others.
  mustered_ = {std::move(pending), bit, number};
  stage(*mustered_.pending);
  if (muster_->announce(number, bit) != Muster::State::kClosed) {
    return true;
  }
  pending = std::exchange(mustered_, {}).pending;
  pending->is_staged = false;
  return false;
}

Muster::State Engine::muster_state() const {
  if (mustered_.pending == nullptr) {
    return Muster::State::kOpen;
  }
  return mustered_.number == decisions_ + 1 ? muster_->look(mustered_.number) : Muster::State::kClosed;
}

bool Engine::is_mustered() const {
  const Muster::State state = muster_state();
  return state == Muster::State::kAll || state == Muster::State::kClosed;
}

void Engine::settle_muster(transport::Bell bell) {
  const Muster::State state = muster_state();
  if (state == Muster::State::kAll) {
    run_mustered();
  } else if (state == Muster::State::kClosed) {
    report_mustered(bell);
  }
}

void Engine::run_mustered() {
  Mustered mustered = std::exchange(mustered_, {});
  Decision decision;
  decision.number = mustered.number;
  decision.known.set(mustered.bit);
  expect(std::move(mustered.pending), mustered.bit);
  obey(decision);
  const base::MutexLock lock(mutex_);
  ++stats_.mustered;
}

void Engine::report_mustered(transport::Bell bell) {
  Ready ready;
  std::unique_ptr<Pending> pending = std::exchange(mustered_, {}).pending;
  ready.age_ns = base::now_ns() - pending->submitted_ns;
  pending->is_staged = false;
  report(std::move(pending), ready);
  send_ready(ready, bell);
}

void Engine::end_muster() {
  while (mustered_.pending != nullptr && !world_over_) {
    Muster::State state = muster_state();
    if (state == Muster::State::kOpen) {
      state = muster_->close(mustered_.number);
    }
    if (state == Muster::State::kAll) {
      run_mustered();
    } else if (state == Muster::State::kClosed) {
      report_mustered(transport::Bell::kNow);
      receive_messages();
    } else {
      // The decision that says what has become of it is on its way.
      pump_->wait([this] { return pump_->has_message(); });
      receive_messages();
    }
  }
}

void Engine::obey_in_order(const Decision& decision) {
  if (decision.type != Decision::Type::kQuestion) {
    if (mustered_.pending != nullptr && decision.number == decisions_ + 2) {
      run_mustered();
    }
    if (decision.number != decisions_ + 1) {
      throw Error(Code::kInternal, "decision " + std::to_string(decision.number) + " came after decision " +
                                       std::to_string(decisions_) + ". This is a bug of farandole's");
    }
  }
  obey(decision);
}

}  // namespace farandole::engine
