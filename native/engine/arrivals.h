// Requests whose inputs are on their way from a GPU: other ranks do not hear of them before these have arrived.
//
// Threads: for the thread with the progress lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "engine/pending.h"

namespace farandole::engine {

class Arrivals {
 public:
  bool empty() const noexcept { return coming_.empty(); }
  // Throws Error(kUnavailable) when a GPU has failed.
  bool has_any() const {
    device::Sweep sweep;
    return std::ranges::any_of(coming_, [&](const auto& pending) { return has_arrived(*pending, sweep); });
  }

  // Keeps the requests whose inputs are still on their way; returns the others, and those that have arrived meanwhile.
  std::vector<std::unique_ptr<Pending>> exchange(std::vector<std::unique_ptr<Pending>> requests) {
    const auto needs_no_copy = [](const auto& pending) { return pending->mirror == nullptr; };
    if (coming_.empty() && std::ranges::all_of(requests, needs_no_copy)) {
      return requests;
    }
    std::ranges::move(requests, std::back_inserter(coming_));
    std::vector<std::unique_ptr<Pending>> arrived;
    device::Sweep sweep;
    for (size_t i = 0; i < coming_.size();) {
      if (has_arrived(*coming_[i], sweep)) {  // before anything is moved: it may throw
        arrived.push_back(std::move(coming_[i]));
        coming_.erase(coming_.begin() + static_cast<ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    return arrived;
  }
  // When the world is over.
  void take_all(std::vector<std::unique_ptr<Pending>>& into) {
    std::ranges::move(std::exchange(coming_, {}), std::back_inserter(into));
  }

 private:
  static bool has_arrived(const Pending& pending, device::Sweep& sweep) {
    return pending.mirror == nullptr || sweep.is_reached(pending.mirror->mark());
  }

  std::vector<std::unique_ptr<Pending>> coming_;
};

}  // namespace farandole::engine
