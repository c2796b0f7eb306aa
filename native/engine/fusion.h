// Which agreed requests travel together. A pure function of what was agreed: all ranks plan the same buckets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace farandole::engine {

// What decides about a request's company. Requests with different keys never share a bucket.
struct Fusible {
  size_t bytes = 0;
  uint64_t key = 0;
  bool alone = false;  // never fused
};

// Buckets of indices into `requests`, in order. A request joins the open bucket of its key if it still fits under
// `threshold` bytes, and opens a new one otherwise; requests of other keys in between do not matter.
std::vector<std::vector<size_t>> plan_buckets(std::span<const Fusible> requests, size_t threshold);

}  // namespace farandole::engine
