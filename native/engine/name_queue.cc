#include "engine/name_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace farandole::engine {
namespace {

bool speaks_of_all_before(const Pending& pending) {
  const Kind kind = pending.request.signature.kind;
  return kind == Kind::kJoin || kind == Kind::kRemoveGroup;
}

}  // namespace

std::vector<std::unique_ptr<Pending>> NameQueue::admit(std::vector<std::unique_ptr<Pending>> submitted) {
  for (std::unique_ptr<Pending>& pending : submitted) {
    pending = begin(std::move(pending));
  }
  std::erase(submitted, nullptr);
  if (next_.empty()) {
    return submitted;
  }
  std::vector<std::unique_ptr<Pending>> admitted = std::exchange(next_, {});
  std::ranges::move(submitted, std::back_inserter(admitted));
  return admitted;
}

std::unique_ptr<Pending> NameQueue::begin(std::unique_ptr<Pending> pending) {
  const auto [place, is_free] = names_.try_emplace(key_of(*pending));
  if (!is_free) {
    place->second.push_back({++arrivals_, std::move(pending)});
    ++waiting_;
  } else if (waiting_ > 0 && speaks_of_all_before(*pending)) {
    last_.push_back({++arrivals_, waiting_, std::move(pending)});
  }
  return pending;
}

void NameQueue::settle(const Pending& pending) {
  auto node = names_.extract(key_of(pending));
  if (node.empty() || node.mapped().empty()) {
    return;
  }
  std::vector<Waiting>& waiting = node.mapped();
  const uint64_t number = waiting.front().number;
  next_.push_back(std::move(waiting.front().pending));
  waiting.erase(waiting.begin());
  node.key() = key_of(*next_.back());
  names_.insert(std::move(node));
  --waiting_;
  release_last(number);
}

// What arrived with this number does not wait any more.
void NameQueue::release_last(uint64_t number) {
  for (Last& last : last_) {
    if (number < last.number && --last.before == 0) {
      next_.push_back(std::move(last.pending));
    }
  }
  std::erase_if(last_, [](const Last& last) { return last.before == 0; });
}

void NameQueue::take_all(std::vector<std::unique_ptr<Pending>>& into) {
  for (auto& [key, all] : std::exchange(names_, {})) {
    for (Waiting& waiting : all) {
      into.push_back(std::move(waiting.pending));
    }
  }
  for (Last& last : std::exchange(last_, {})) {
    into.push_back(std::move(last.pending));
  }
  std::ranges::move(std::exchange(next_, {}), std::back_inserter(into));
  waiting_ = 0;
}

}  // namespace farandole::engine
