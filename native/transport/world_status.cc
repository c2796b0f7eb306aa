#include "transport/world_status.h"

#include "transport/event_fd.h"

namespace farandole::transport {

std::string describe_loss(int rank, Sign sign) {
  const std::string who = "rank " + std::to_string(rank);
  switch (sign) {
    case Sign::kClosed:
      return who + " was lost: its process ended without saying goodbye";
    case Sign::kSilent:
      return who + " was lost: it fell silent (its process is stopped, or the network between is cut)";
    case Sign::kRevoked:
      return who + " was taken out of the world";
    case Sign::kBroken:
      return who + " sent data that cannot be right";
    case Sign::kStalled:
      return who + " did not ask for what others waited for";
  }
  return who + " was lost";
}

bool WorldStatus::revoke(Cause cause) {
  {
    const base::MutexLock lock(mutex_);
    if (cause_.has_value()) {
      return false;
    }
    cause_ = std::move(cause);
    revoked_.store(true, std::memory_order_release);
  }
  if (doorbell_ != nullptr) {
    doorbell_->signal();
  }
  if (watch_fd_ >= 0) {
    signal_event(watch_fd_);
  }
  return true;
}

std::optional<Cause> WorldStatus::cause() const {
  const base::MutexLock lock(mutex_);
  return cause_;
}

base::Error WorldStatus::error() const {
  const base::MutexLock lock(mutex_);
  const auto code = cause_->sign == Sign::kBroken    ? base::Code::kInternal
                    : cause_->sign == Sign::kStalled ? base::Code::kStalled
                                                     : base::Code::kWorkerLost;
  return {code, cause_->text, cause_->rank};
}

}  // namespace farandole::transport
