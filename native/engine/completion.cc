#include "engine/completion.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

namespace farandole::engine {

namespace {

// The time for which a launched request keeps its name when no thread asks for it.
constexpr int64_t kUnseenNs = 250'000'000;

thread_local bool t_in_callback = false;

}  // namespace

bool Completions::take_name(const std::shared_ptr<Completion>& completion) {
  if (completion->key.empty()) {
    return true;
  }
  const auto [holder, is_free] = names_.insert(completion);
  if (is_free) {
    return true;
  }
  if ((*holder)->progress == Progress::kOpen || base::now_ns() - (*holder)->launched_ns <= kUnseenNs) {
    return false;
  }
  names_.erase(holder);
  names_.insert(completion);
  return true;
}

void Completions::free_name(const std::shared_ptr<Completion>& completion) {
  if (completion->key.empty()) {
    return;
  }
  const auto found = names_.find(completion);
  if (found != names_.end() && *found == completion) {
    names_.erase(found);
  }
}

std::optional<size_t> Completions::open(const Opened& opened) {
  for (const auto& completion : opened) {
    completion->key_hash = std::hash<std::string>{}(completion->key);
  }
  const base::MutexLock lock(mutex_);
  for (size_t i = 0; i < opened.size(); ++i) {
    if (!take_name(opened[i])) {
      for (size_t earlier = 0; earlier < i; ++earlier) {
        free_name(opened[earlier]);
      }
      return i;
    }
  }
  for (const auto& completion : opened) {
    completion->handle = ++last_;
    table_.emplace(completion->handle, completion);
  }
  return std::nullopt;
}

void Completions::withdraw(const Opened& opened) {
  const base::MutexLock lock(mutex_);
  for (const auto& completion : opened) {
    free_name(completion);
    table_.erase(completion->handle);
  }
}

void Completions::expect_callbacks(size_t callbacks) {
  const base::MutexLock lock(mutex_);
  uncalled_ += callbacks;
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

std::shared_ptr<device::Memory> Completions::take_device_data(Handle handle) {
  const base::MutexLock lock(mutex_);
  const auto found = table_.find(handle);
  return found == table_.end() ? nullptr : std::exchange(found->second->device_data, nullptr);
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
    if (node.mapped()->progress != Progress::kOpen) {
      free_name(node.mapped());
    }
  }
  return all_known;
}

void Completions::advance(const std::shared_ptr<Completion>& completion, Progress progress, int64_t now_ns) {
  if (completion->progress == Progress::kOpen) {
    completion->launched_ns = now_ns;
    if (completion->released) {
      free_name(completion);
    }
  }
  completion->progress = progress;
}

void Completions::launch(const std::vector<std::shared_ptr<Completion>>& launched) {
  {
    const int64_t now = base::now_ns();
    const base::MutexLock lock(mutex_);
    for (const auto& completion : launched) {
      advance(completion, Progress::kLaunched, now);
    }
  }
  changed_.notify_all();
}

void Completions::finish(std::span<Finished> finished) {
  {
    const base::MutexLock lock(mutex_);
    for (Finished& each : finished) {
      const auto& completion = each.completion;
      static_cast<Outcome&>(*completion) = std::move(each.outcome);
      // Before it is done: a thread that sees it done may read all of it.
      if (completion->callback != nullptr) {
        to_call_.push_back({completion, std::exchange(completion->callback, nullptr)});
        callbacks_listed_.store(true, std::memory_order_release);
      }
      advance(completion, Progress::kDone, each.at_ns);
    }
  }
  changed_.notify_all();
}

bool Completions::run_callbacks() {
  std::vector<Call> listed;
  {
    const base::MutexLock lock(mutex_);
    listed.swap(to_call_);
    callbacks_listed_.store(false, std::memory_order_relaxed);
  }
  if (listed.empty()) {
    return false;
  }
  t_in_callback = true;
  for (const Call& call : listed) {
    call.callback(*call.completion);
  }
  t_in_callback = false;
  const size_t called = listed.size();
  listed.clear();  // and with it what the callbacks hold, before anything learns that they have returned
  {
    const base::MutexLock lock(mutex_);
    uncalled_ -= called;
  }
  changed_.notify_all();
  return true;
}

void Completions::wait_for_callbacks() {
  const base::MutexLock lock(mutex_);
  const auto all_returned = [this] {
    mutex_.assert_held();
    return uncalled_ == 0;
  };
  while (!changed_.wait_for(mutex_, std::chrono::hours(1), all_returned)) {
  }
}

bool Completions::in_callback() noexcept { return t_in_callback; }

int Completions::poll(Handle handle) {
  const base::MutexLock lock(mutex_);
  const auto found = table_.find(handle);
  if (found == table_.end()) {
    return -1;
  }
  if (found->second->progress == Progress::kOpen) {
    return 0;
  }
  free_name(found->second);
  return 1;
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

bool Completions::have_come(const Awaited& awaited, Progress progress) noexcept {
  // From behind: the last one is mostly the last to come so far.
  return std::all_of(awaited.rbegin(), awaited.rend(),
                     [progress](const auto& completion) { return completion->progress >= progress; });
}

std::shared_ptr<const Completion> Completions::see(const Awaited& awaited) {
  const base::MutexLock lock(mutex_);
  for (const auto& completion : awaited) {
    if (completion->progress != Progress::kOpen) {
      free_name(completion);
    }
  }
  const auto failed = std::ranges::find_if(awaited, [](const auto& each) { return each->code != base::Code::kOk; });
  return failed == awaited.end() ? nullptr : *failed;
}

void Completions::wait(const Awaited& awaited, Progress progress, const base::Deadline& deadline,
                       const std::function<bool()>& stop) {
  size_t come = 0;
  const base::MutexLock lock(mutex_);
  changed_.wait_for(mutex_, std::chrono::nanoseconds(deadline.left_ns()), [&] {
    while (come < awaited.size() && awaited[come]->progress >= progress) {
      ++come;
    }
    return come == awaited.size() || stop();
  });
}

void Completions::nudge() {
  {
    const base::MutexLock lock(mutex_);
  }
  changed_.notify_all();
}

}  // namespace farandole::engine
