#include "engine/catalog.h"

#include "base/error.h"

namespace farandole::engine {

Signature common_part(Signature signature) {
  if (signature.kind == Kind::kAllgather && !signature.shape.empty()) {
    signature.shape[0] = 0;
  }
  return signature;
}

Signature own_part(const Decision::Agreed& agreed, int member_index) {
  Signature signature = agreed.signature;
  if (signature.kind == Kind::kAllgather) {
    signature.shape[0] = agreed.sizes.at(static_cast<size_t>(member_index));
  }
  return signature;
}

uint32_t Catalog::find(const std::string& name, const Signature& signature, int member_index) const {
  const auto found = bits_.find(name);
  if (found == bits_.end() || own_part(entries_[found->second], member_index) != signature) {
    return kNoBit;
  }
  return found->second;
}

uint32_t Catalog::find_name(const std::string& name) const {
  const auto found = bits_.find(name);
  return found == bits_.end() ? kNoBit : found->second;
}

void Catalog::put(const Decision::Agreed& agreed) {
  if (agreed.bit > size()) {
    throw base::Error(base::Code::kInternal, "a decision gives a bit that skips others");
  }
  if (agreed.bit == size()) {
    entries_.push_back(agreed);
  } else {
    entries_[agreed.bit] = agreed;
  }
  bits_[agreed.name] = agreed.bit;
}

}  // namespace farandole::engine
