#include "transport/doorbell.h"

#include <unistd.h>

namespace farandole::transport {

void Doorbell::signal() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sleeping_->load(std::memory_order_relaxed) != static_cast<uint32_t>(Sleep::kAwake)) {
    wake();
  }
}

void Doorbell::signal_midway() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sleeping_->load(std::memory_order_relaxed) == static_cast<uint32_t>(Sleep::kMidway)) {
    wake();
  }
}

// Of several threads that signal at once, only one pays for the system call.
void Doorbell::wake() noexcept {
  if (sleeping_->exchange(static_cast<uint32_t>(Sleep::kAwake), std::memory_order_acq_rel) !=
      static_cast<uint32_t>(Sleep::kAwake)) {
    call();
  }
}

void Doorbell::call() noexcept {
  const uint64_t one = 1;
  // It cannot block: the counter is drained at every end_sleep(). A closed descriptor means that the owner is gone.
  [[maybe_unused]] const ssize_t written = ::write(event_fd_, &one, sizeof one);
}

void Doorbell::prepare_sleep(Sleep how) noexcept {
  sleeping_->store(static_cast<uint32_t>(how), std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Doorbell::end_sleep() noexcept {
  sleeping_->store(static_cast<uint32_t>(Sleep::kAwake), std::memory_order_relaxed);
  uint64_t signals = 0;
  [[maybe_unused]] const ssize_t got = ::read(event_fd_, &signals, sizeof signals);  // non-blocking; may be empty
}

}  // namespace farandole::transport
