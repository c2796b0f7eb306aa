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
  bool has_any() const { return std::ranges::any_of(coming_, has_arrived); }

  // Keeps those that are still on their way, and gives the others, with those that have arrived meanwhile.
  std::vector<std::unique_ptr<Pending>> exchange(std::vector<std::unique_ptr<Pending>> requests) {
    const auto is_in_host_memory = [](const auto& pending) { return pending->mirror == nullptr; };
    if (coming_.empty() && std::ranges::all_of(requests, is_in_host_memory)) {
      return requests;
    }
    std::ranges::move(requests, std::back_inserter(coming_));
    std::vector<std::unique_ptr<Pending>> arrived;
    for (size_t i = 0; i < coming_.size();) {
      if (has_arrived(coming_[i])) {  // before anything is moved: it may throw
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
  static bool has_arrived(const std::unique_ptr<Pending>& pending) {
    return pending->mirror == nullptr || pending->mirror->has_arrived();
  }

  std::vector<std::unique_ptr<Pending>> coming_;
};

}  // namespace farandole::engine
