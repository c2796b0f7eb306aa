#include "engine/response_cache.h"

#include <algorithm>

#include "base/error.h"

namespace farandole::engine {

namespace {

// Returns whether own_part(agreed, member_index) is `own`, without computing it, because every request passes here.
bool matches(const Decision::Agreed& agreed, int member_index, const Signature& own) {
  const Signature& common = agreed.signature;
  if (common.kind != own.kind || common.dtype != own.dtype || common.opaque != own.opaque ||
      common.options() != own.options() || common.shape.size() != own.shape.size()) {
    return false;
  }
  if (!has_own_rows(common.kind)) {
    return common.shape == own.shape;
  }
  const bool same_rows =
      row_of(common.kind).rows == Rows::kOwn || agreed.sizes.at(static_cast<size_t>(member_index)) == own.shape[0];
  return same_rows && std::equal(common.shape.begin() + 1, common.shape.end(), own.shape.begin() + 1);
}

}  // namespace

Signature common_part(Signature signature) {
  if (has_own_rows(signature.kind) && !signature.shape.empty()) {
    signature.shape[0] = 0;
  }
  return signature;
}

Signature own_part(const Decision::Agreed& agreed, int member_index) {
  Signature signature = agreed.signature;
  if (row_of(signature.kind).rows == Rows::kAgreed) {
    signature.shape[0] = agreed.sizes.at(static_cast<size_t>(member_index));
  }
  return signature;
}

uint32_t ResponseCache::find(const std::string& name, const Signature& signature, int member_index) const {
  const auto found = bits_.find(name);
  return found != bits_.end() && matches(entries_[found->second], member_index, signature) ? found->second : kNoBit;
}

uint32_t ResponseCache::find_name(const std::string& name) const {
  const auto found = bits_.find(name);
  return found == bits_.end() ? kNoBit : found->second;
}

void ResponseCache::put(const Decision::Agreed& agreed) {
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
