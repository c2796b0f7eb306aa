#include "engine/shm_agreement.h"

namespace farandole::engine {
namespace {

// A word, from its highest bit: number (32 bits), bit (16), how many workers have announced it (15), closed (1).
constexpr uint64_t kClosedFlag = 1;
constexpr uint64_t kOne = 2;
constexpr uint64_t kMost = 0x7fff;

uint32_t number_in(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
uint32_t bit_in(uint64_t word) { return static_cast<uint32_t>(word >> 16) & 0xffff; }
uint64_t count_in(uint64_t word) { return word >> 1 & kMost; }
bool is_closed(uint64_t word) { return (word & kClosedFlag) != 0; }
uint64_t empty_word(uint32_t number, uint32_t bit) { return uint64_t{number} << 32 | uint64_t{bit} << 16; }

// Numbers may wrap around.
bool is_older(uint32_t one, uint32_t other) { return static_cast<int32_t>(one - other) < 0; }

}  // namespace

ShmAgreement::ShmAgreement(transport::ArenaHeader* header, int world_size) noexcept
    : header_(static_cast<uint64_t>(world_size) <= kMost ? header : nullptr),
      size_(static_cast<uint64_t>(world_size)) {}

bool ShmAgreement::is_open(uint32_t number) const noexcept {
  if (!is_allowed()) {
    return false;
  }
  const uint64_t seen = word(number).load(std::memory_order_acquire);
  return is_older(number_in(seen), number) || (number_in(seen) == number && !is_closed(seen));
}

ShmAgreement::Change ShmAgreement::announce(uint32_t number, uint32_t bit, const std::function<void()>& as_last) {
  if (!is_allowed() || bit > 0xffff) {
    return {State::kClosed, false};
  }
  bool is_ready = as_last == nullptr;
  uint64_t seen = word(number).load(std::memory_order_acquire);
  for (;;) {
    uint64_t next = seen;
    if (is_older(number_in(seen), number)) {
      next = empty_word(number, bit) + kOne;
    } else if (number_in(seen) != number || is_closed(seen)) {
      return {State::kClosed, false};
    } else if (bit_in(seen) != bit) {
      next |= kClosedFlag;
    } else {
      next += kOne;
    }
    if (!is_ready && !is_closed(next) && count_in(next) == size_) {
      as_last();
      is_ready = true;
    }
    if (word(number).compare_exchange_weak(seen, next, std::memory_order_acq_rel, std::memory_order_acquire)) {
      const State state = is_closed(next) ? State::kClosed : count_in(next) == size_ ? State::kAll : State::kOpen;
      return {state, state != State::kOpen && size_ > 1};
    }
  }
}

void ShmAgreement::set_last(uint32_t number, int rank) noexcept {
  header_->shm_agreement_last[number % 2].store(rank, std::memory_order_relaxed);
}

int ShmAgreement::last(uint32_t number) const noexcept {
  return header_->shm_agreement_last[number % 2].load(std::memory_order_relaxed);
}

ShmAgreement::State ShmAgreement::look(uint32_t number) const noexcept {
  const uint64_t seen = word(number).load(std::memory_order_acquire);
  if (number_in(seen) != number) {
    return State::kPassed;
  }
  if (is_closed(seen)) {
    return State::kClosed;
  }
  return count_in(seen) == size_ ? State::kAll : State::kOpen;
}

ShmAgreement::Change ShmAgreement::close(uint32_t number) noexcept {
  if (header_ == nullptr) {
    return {State::kClosed, false};
  }
  uint64_t seen = word(number).load(std::memory_order_acquire);
  for (;;) {
    uint64_t next = seen | kClosedFlag;
    if (is_older(number_in(seen), number)) {
      next = empty_word(number, 0) | kClosedFlag;
    } else if (number_in(seen) != number) {
      return {State::kPassed, false};
    } else if (is_closed(seen)) {
      return {State::kClosed, false};
    } else if (count_in(seen) == size_) {
      return {State::kAll, false};
    }
    if (word(number).compare_exchange_weak(seen, next, std::memory_order_acq_rel, std::memory_order_acquire)) {
      return {State::kClosed, count_in(next) > 0};
    }
  }
}

void ShmAgreement::forbid() noexcept {
  if (header_ != nullptr) {
    header_->shm_agreement_forbidden.store(1, std::memory_order_relaxed);
  }
}

bool ShmAgreement::is_allowed() const noexcept {
  return header_ != nullptr && header_->shm_agreement_forbidden.load(std::memory_order_relaxed) == 0;
}

}  // namespace farandole::engine
