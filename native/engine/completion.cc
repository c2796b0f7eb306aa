#include "engine/completion.h"

#include <chrono>

namespace farandole::engine {

Handle Completions::open(std::shared_ptr<Completion>& completion) {
  completion = std::make_shared<Completion>();
  const base::MutexLock lock(mutex_);
  table_.emplace(++last_, completion);
  return last_;
}

std::shared_ptr<const Completion> Completions::find(Handle handle) const {
  const base::MutexLock lock(mutex_);
  const auto found = table_.find(handle);
  return found == table_.end() ? nullptr : found->second;
}

bool Completions::release(Handle handle) {
  const base::MutexLock lock(mutex_);
  return table_.erase(handle) > 0;
}

void Completions::finish(const std::vector<std::shared_ptr<Completion>>& finished) {
  {
    const base::MutexLock lock(mutex_);
    for (const auto& completion : finished) {
      completion->done = true;
    }
  }
  changed_.notify_all();
}

int Completions::poll(Handle handle) const {
  const base::MutexLock lock(mutex_);
  const auto found = table_.find(handle);
  return found == table_.end() ? -1 : static_cast<int>(found->second->done);
}

int Completions::wait(Handle handle, const base::Deadline& deadline) const {
  const base::MutexLock lock(mutex_);
  const auto found = table_.find(handle);
  if (found == table_.end()) {
    return -1;
  }
  const std::shared_ptr<Completion> completion = found->second;
  changed_.wait_for(mutex_, std::chrono::nanoseconds(deadline.left_ns()), [&] { return completion->done; });
  return static_cast<int>(completion->done);
}

}  // namespace farandole::engine
