// The plan of the buckets in which agreed requests travel: a pure function of what was agreed, the same on all ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace farandole::engine {

// The properties that all requests of one bucket have in common: numbers as they are, factors as their bits. Two
// requests share a bucket only if all of them are equal.
using FusionKey = std::array<uint64_t, kOptions + 3>;
// `backend` and `algorithm` as they were chosen for the request.
FusionKey fusion_key(const Signature& signature, const void* backend, uint32_t algorithm);

// The facts that decide which requests can join a request.
struct Fusible {
  size_t bytes = 0;
  FusionKey key{};
  bool alone = false;  // never fused
};

// Buckets of indices into `requests`, in order. A request joins the open bucket of its key if it still fits under
// `threshold` bytes, and opens a new one otherwise; requests of other keys in between do not matter.
std::vector<std::vector<size_t>> plan_buckets(std::span<const Fusible> requests, size_t threshold);

}  // namespace farandole::engine
