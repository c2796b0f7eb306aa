#include "engine/events.h"

#include <algorithm>

namespace farandole::engine {

void Events::record(const Event& event) {
  const base::MutexLock lock(mutex_);
  ring_buffer_[count_++ % kCapacity] = event;
}

uint32_t Events::number_of(const std::string& name, const Signature& signature) {
  const base::MutexLock lock(mutex_);
  if (const auto found = names_.find(name); found != names_.end()) {
    Name& known = by_number_[found->second];
    // Usually they have the same lengths as before, so nothing is allocated.
    known.type = signature.type_name();
    known.shape = signature.shape;
    return found->second;
  }
  if (names_.size() >= kMaxNames) {
    return kNone;
  }
  const auto number = static_cast<uint32_t>(by_number_.size());
  by_number_.push_back({&names_.emplace(name, number).first->first, signature.type_name(), signature.shape});
  return number;
}

const std::string& Events::name_of(uint32_t number) const {
  static const std::string kEmpty;
  const base::MutexLock lock(mutex_);
  return number < by_number_.size() ? *by_number_[number].text : kEmpty;
}

std::string Events::signature_of(uint32_t number) const {
  const base::MutexLock lock(mutex_);
  if (number >= by_number_.size()) {
    return "";
  }
  return by_number_[number].type + " " + format_shape(by_number_[number].shape);
}

size_t Events::read(uint64_t& cursor, std::span<Event> into, uint64_t& lost) {
  are_read_.store(true, std::memory_order_relaxed);
  const base::MutexLock lock(mutex_);
  const uint64_t oldest = count_ > kCapacity ? count_ - kCapacity : 0;
  if (cursor < oldest) {
    lost += oldest - cursor;
    cursor = oldest;
  }
  const auto copied = static_cast<size_t>(std::min<uint64_t>(count_ - cursor, into.size()));
  for (size_t i = 0; i < copied; ++i) {
    into[i] = ring_buffer_[cursor++ % kCapacity];
  }
  return copied;
}

}  // namespace farandole::engine
