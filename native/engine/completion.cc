#include "engine/completion.h"

#include <chrono>
#include <utility>

namespace farandole::engine {

namespace {

// How long a done request keeps its name when nobody asks for it.
constexpr int64_t kUnseenNs = 250'000'000;

}  // namespace

bool Completions::in_flight(const std::string& key) const {
  const auto found = names_.find(key);
  return found != names_.end() && !(found->second->done && base::now_ns() - found->second->done_ns > kUnseenNs);
}

void Completions::free_name(const std::shared_ptr<Completion>& completion) {
  const auto found = names_.find(completion->key);
  if (found != names_.end() && found->second == completion) {
    names_.erase(found);
  }
}

std::vector<Completions::Opened> Completions::open(std::vector<std::string> keys, size_t& taken) {
  std::vector<Opened> opened;
  opened.reserve(keys.size());
  const base::MutexLock lock(mutex_);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (in_flight(keys[i])) {
      for (const Opened& earlier : opened) {
        free_name(earlier.completion);
      }
      taken = i;
      return {};
    }
    auto completion = std::make_shared<Completion>();
    completion->key = std::move(keys[i]);
    names_[completion->key] = completion;
    opened.push_back({0, std::move(completion)});
  }
  for (Opened& each : opened) {
    each.handle = ++last_;
    table_.emplace(each.handle, each.completion);
  }
  return opened;
}

void Completions::forget_names() {
  const base::MutexLock lock(mutex_);
  names_.clear();
}

std::shared_ptr<const Completion> Completions::find(Handle handle) const {
  const base::MutexLock lock(mutex_);
  const auto found = table_.find(handle);
  return found == table_.end() ? nullptr : found->second;
}

bool Completions::release(std::span<const Handle> handles) {
  bool all_known = true;
  const base::MutexLock lock(mutex_);
  for (const Handle handle : handles) {
    auto node = table_.extract(handle);
    if (node.empty()) {
      all_known = false;
      continue;
    }
    node.mapped()->released = true;
    if (node.mapped()->done) {
      free_name(node.mapped());
    }
  }
  return all_known;
}

void Completions::finish(const std::vector<std::shared_ptr<Completion>>& finished) {
  {
    const int64_t now = base::now_ns();
    const base::MutexLock lock(mutex_);
    for (const auto& completion : finished) {
      completion->done = true;
      completion->done_ns = now;
      if (completion->released) {
        free_name(completion);
      }
    }
  }
  changed_.notify_all();
}

int Completions::poll(Handle handle) {
  const base::MutexLock lock(mutex_);
  const auto found = table_.find(handle);
  if (found == table_.end()) {
    return -1;
  }
  if (found->second->done) {
    free_name(found->second);
  }
  return static_cast<int>(found->second->done);
}

std::optional<Completions::Awaited> Completions::find_all(std::span<const Handle> handles) const {
  Awaited awaited;
  awaited.reserve(handles.size());
  const base::MutexLock lock(mutex_);
  for (const Handle handle : handles) {
    const auto found = table_.find(handle);
    if (found == table_.end()) {
      return std::nullopt;
    }
    awaited.push_back(found->second);
  }
  return awaited;
}

bool Completions::see(const Awaited& awaited) {
  bool all_done = true;
  const base::MutexLock lock(mutex_);
  for (const auto& completion : awaited) {
    if (completion->done) {
      free_name(completion);
    }
    all_done &= completion->done;
  }
  return all_done;
}

void Completions::wait(const Awaited& awaited, const base::Deadline& deadline, const std::function<bool()>& stop) {
  size_t done = 0;
  const base::MutexLock lock(mutex_);
  changed_.wait_for(mutex_, std::chrono::nanoseconds(deadline.left_ns()), [&] {
    while (done < awaited.size() && awaited[done]->done) {
      ++done;
    }
    return done == awaited.size() || stop();
  });
}

void Completions::nudge() {
  {
    const base::MutexLock lock(mutex_);
  }
  changed_.notify_all();
}

}  // namespace farandole::engine
