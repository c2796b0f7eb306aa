#include "transport/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

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
  switch (static_cast<Sleep>(sleeping_->exchange(static_cast<uint32_t>(Sleep::kAwake), std::memory_order_acq_rel))) {
    case Sleep::kAwake:
      break;
    case Sleep::kIdle:
    case Sleep::kMidway:
      call();
      break;
    case Sleep::kInPlace:
      // Shared between processes: a private futex is known by its address, which differs.
      ::syscall(SYS_futex, sleeping_, FUTEX_WAKE, 1, nullptr, nullptr, 0);
      break;
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

// Returns at once if a signal has come since prepare_sleep(), because the word has changed then.
void Doorbell::sleep_in_place(int64_t at_most_ns) noexcept {
  const int64_t ns = std::max<int64_t>(at_most_ns, 0);
  const timespec at_most{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  ::syscall(SYS_futex, sleeping_, FUTEX_WAIT, static_cast<uint32_t>(Sleep::kInPlace), &at_most, nullptr, 0);
}

void Doorbell::end_sleep_in_place() noexcept {
  sleeping_->store(static_cast<uint32_t>(Sleep::kAwake), std::memory_order_relaxed);
}

// Makes no system call if no signal came: end_sleep() reads what a signal has written.
void Doorbell::take_over() noexcept {
  if (sleeping_->exchange(static_cast<uint32_t>(Sleep::kAwake), std::memory_order_acq_rel) ==
      static_cast<uint32_t>(Sleep::kAwake)) {
    end_sleep();
  }
}

}  // namespace farandole::transport
