#include "backend/nccl/communicator.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/log.h"

namespace farandole::backend::nccl {
namespace {

constexpr double kEndingSeconds = 5;

}  // namespace

void Communicator::form(const Library& library, const UniqueId& id, double patience_seconds) {
  library_ = &library;
  deadline_ = base::Deadline::after_seconds(patience_seconds);
  state_ = State::kForming;
  const device::Gpu::Current current(gpu_);
  Config config;
  library.check(
      library.functions.comm_init_rank_config(&comm_, static_cast<int>(group_.size()), id, group_.index, &config),
      "forming a communicator", comm_);
}

bool Communicator::look() {
  const device::Gpu::Current current(gpu_);
  if (is_settled("forming a communicator")) {
    state_ = State::kFormed;
    return true;
  }
  if (deadline_.passed()) {
    throw base::Error(base::Code::kUnavailable,
                      "NCCL does not finish forming a communicator; NCCL_DEBUG=INFO shows what it waits for");
  }
  return false;
}

bool Communicator::is_settled(const char* what) const {
  Result state = Result::kSuccess;
  library_->check(library_->functions.comm_get_async_error(comm_, &state), "asking for errors", comm_);
  library_->check(state, what, comm_);
  return state != Result::kInProgress;
}

void Communicator::end() noexcept {
  try {
    const device::Gpu::Current current(gpu_);
    const auto deadline = base::Deadline::after_seconds(kEndingSeconds);
    library_->check(library_->functions.comm_finalize(comm_), "ending a communicator", comm_);
    while (!is_settled("ending a communicator")) {
      if (deadline.passed()) {
        return;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    library_->check(library_->functions.comm_destroy(give_up()), "ending a communicator", nullptr);
  } catch (const base::Error& error) {
    base::log(base::Level::kWarning, -1, error.what());
  }
}

Comm Communicator::give_up() noexcept {
  state_ = State::kOver;
  return std::exchange(comm_, nullptr);
}

}  // namespace farandole::backend::nccl
