#include "engine/fusion.h"

#include <unordered_map>

namespace farandole::engine {

std::vector<std::vector<size_t>> plan_buckets(std::span<const Fusible> requests, size_t threshold) {
  struct Open {
    size_t bucket;
    size_t bytes;
  };
  std::vector<std::vector<size_t>> buckets;
  std::unordered_map<uint64_t, Open> open;  // the bucket of each key that still takes more
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
