#include "transport/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "transport/event_fd.h"

namespace farandole::transport {
namespace {

// The word: a `Sleep`, whether it is in place, and above these the awaited rank, counted from 1, or 0.
constexpr uint32_t kInPlace = 4;
constexpr int kRankShift = 3;
constexpr uint32_t kAwake = 0;

constexpr uint32_t word_of(Sleep what_for, int awaited) {
  return static_cast<uint32_t>(what_for) | static_cast<uint32_t>(awaited + 1) << kRankShift;
}

}  // namespace

void Doorbell::signal() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sleeping_->load(std::memory_order_relaxed) != kAwake) {
    wake();
  }
}

void Doorbell::signal(Sleep what_for, int rank) noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint32_t word = sleeping_->load(std::memory_order_relaxed) & ~kInPlace;
  if (word == word_of(what_for, rank) || word == word_of(what_for, kAnybody)) {
    wake();
  }
}

// Of several threads that signal at once, only one pays for the system call.
void Doorbell::wake() noexcept {
  const uint32_t word = sleeping_->exchange(kAwake, std::memory_order_acq_rel);
  if ((word & kInPlace) != 0) {
    // Shared between processes: a private futex is known by its address, which differs.
    ::syscall(SYS_futex, sleeping_, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  } else if (word != kAwake) {
    call();
  }
}

void Doorbell::call() noexcept { signal_event(event_fd_); }

void Doorbell::prepare_sleep(Sleep what_for, int awaited) noexcept { announce(word_of(what_for, awaited)); }

void Doorbell::announce(uint32_t word) noexcept {
  announced_ = word;
  sleeping_->store(word, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Doorbell::end_sleep() noexcept {
  sleeping_->store(kAwake, std::memory_order_relaxed);
  drain_event(event_fd_);
}

void Doorbell::prepare_sleep_in_place(Sleep what_for, int awaited) noexcept {
  announce(word_of(what_for, awaited) | kInPlace);
}

// Returns at once if a signal has come since the sleep was prepared, because the word has changed then.
void Doorbell::sleep_in_place(int64_t at_most_ns) noexcept {
  const int64_t ns = std::max<int64_t>(at_most_ns, 0);
  const timespec at_most{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  ::syscall(SYS_futex, sleeping_, FUTEX_WAIT, announced_, &at_most, nullptr, 0);
}

void Doorbell::end_sleep_in_place() noexcept { sleeping_->store(kAwake, std::memory_order_relaxed); }

// Makes no system call if no signal came: end_sleep() reads what a signal has written.
void Doorbell::take_over() noexcept {
  if (sleeping_->exchange(kAwake, std::memory_order_acq_rel) == kAwake) {
    end_sleep();
  }
}

}  // namespace farandole::transport
