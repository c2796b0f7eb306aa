#include "engine/fast_path.h"

#include <algorithm>
#include <utility>

#include "transport/arena.h"

namespace farandole::engine {
namespace {

// All workers must share memory with rank 0.
transport::ArenaHeader* shm_agreement_header(const transport::Mesh& mesh) {
  const transport::ArenaView* const arena = mesh.arena(0);
  const bool one_host = std::ranges::all_of(mesh.hosts(), [](int lowest) { return lowest == 0; });
  return arena != nullptr && one_host ? &arena->header() : nullptr;
}

}  // namespace

FastPath::FastPath(transport::Mesh& mesh) : mesh_(mesh), agreement_(shm_agreement_header(mesh), mesh.size()) {}

Pending& FastPath::hold(FastPathRequest request) noexcept {
  request_ = std::move(request);
  return *request_.pending;
}

bool FastPath::announce(const std::function<void()>& as_last) {
  const auto change = agreement_.announce(request_.number, request_.bit, [&] {
    as_last();
    agreement_.set_last(request_.number, mesh_.rank());
  });
  return settle(change) != State::kClosed;
}

FastPath::State FastPath::settle(ShmAgreement::Change change) noexcept {
  for (int rank = 0; change.wakes && rank < mesh_.size(); ++rank) {
    if (rank != mesh_.rank()) {
      mesh_.wake(rank, transport::Sleep::kAgreeing);
    }
  }
  return change.state;
}

FastPathRequest FastPath::take() noexcept { return std::exchange(request_, {}); }

FastPath::State FastPath::state(uint32_t next) const noexcept {
  if (!holds_request()) {
    return State::kOpen;
  }
  return request_.number == next ? agreement_.look(request_.number) : State::kClosed;
}

FastPath::State FastPath::close_request(uint32_t next) noexcept {
  const State now = state(next);
  return now == State::kOpen ? close(request_.number) : now;
}

bool FastPath::is_settled(uint32_t next) const noexcept {
  const State now = state(next);
  return now == State::kAll || now == State::kClosed;
}

}  // namespace farandole::engine
