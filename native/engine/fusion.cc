#include "engine/fusion.h"

#include <bit>
#include <type_traits>
#include <unordered_map>

namespace farandole::engine {
namespace {

template <typename Value>
uint64_t bits_of(Value value) {
  if constexpr (std::is_floating_point_v<Value>) {
    return std::bit_cast<uint64_t>(value);
  } else {
    return static_cast<uint64_t>(value);
  }
}

// Only finds the place in a table; keys of one hash are told apart by their values.
struct Hash {
  size_t operator()(const FusionKey& key) const noexcept {
    uint64_t hash = 0;
    for (const uint64_t value : key) {
      hash = hash * 0x9e3779b97f4a7c15U ^ value;
    }
    return hash;
  }
};

}  // namespace

FusionKey fusion_key(const Signature& signature, const void* backend, uint32_t algorithm) {
  FusionKey key = {bits_of(signature.dtype), reinterpret_cast<uintptr_t>(backend), algorithm};
  size_t at = key.size() - kOptions;
  for_each_option([&](const auto& row) { key.at(at++) = bits_of(signature.*row.field); });
  return key;
}

std::vector<std::vector<size_t>> plan_buckets(std::span<const Fusible> requests, size_t threshold) {
  struct Open {
    size_t bucket;
    size_t bytes;
  };
  std::vector<std::vector<size_t>> buckets;
  std::unordered_map<FusionKey, Open, Hash> open;  // the bucket of each key that still takes more
  for (size_t i = 0; i < requests.size(); ++i) {
    const Fusible& request = requests[i];
    if (request.alone || request.bytes > threshold) {
      buckets.push_back({i});
      continue;
    }
    const auto found = open.find(request.key);
    if (found != open.end() && found->second.bytes + request.bytes <= threshold) {
      buckets[found->second.bucket].push_back(i);
      found->second.bytes += request.bytes;
    } else {
      open[request.key] = {buckets.size(), request.bytes};
      buckets.push_back({i});
    }
  }
  return buckets;
}

}  // namespace farandole::engine
