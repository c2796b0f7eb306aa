#include "engine/events.h"

namespace farandole::engine {

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

}  // namespace farandole::engine
