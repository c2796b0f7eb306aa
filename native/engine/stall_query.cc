#include "engine/stall_query.h"

#include <chrono>
#include <utility>

namespace farandole::engine {

std::string as_one_line(std::string text) {
  constexpr size_t kLongest = 400;
  if (text.size() > kLongest) {
    text.resize(kLongest);
    text += "...";
  }
  for (char& c : text) {
    c = c == '\n' || c == '\r' ? ' ' : c;
  }
  return text;
}

int StallQueries::wait(const base::Deadline& deadline, uint64_t& query) {
  const base::MutexLock lock(mutex_);
  const bool asked = changed_.wait_for(mutex_, std::chrono::nanoseconds(deadline.left_ns()), [this] {
    mutex_.assert_held();
    return !in_world_ || last_ != taken_;
  });
  if (!in_world_) {
    return -1;
  }
  query = taken_ = last_;
  return asked ? 1 : 0;
}

bool StallQueries::answer(uint64_t query, std::string text) {
  const base::MutexLock lock(mutex_);
  if (!in_world_) {
    return false;
  }
  answers_.push_back({query, true, as_one_line(std::move(text))});
  has_answers_.store(true, std::memory_order_release);
  return true;
}

void StallQueries::begin_world() {
  const base::MutexLock lock(mutex_);
  in_world_ = true;
  last_ = taken_ = 0;
  answers_.clear();
  has_answers_.store(false, std::memory_order_relaxed);
}

void StallQueries::end_world() {
  const base::MutexLock lock(mutex_);
  in_world_ = false;
  changed_.notify_all();
}

void StallQueries::pass_on(uint64_t query) {
  const base::MutexLock lock(mutex_);
  last_ = query;
  changed_.notify_all();
}

std::vector<StallAnswer> StallQueries::take_answers() {
  if (!has_answers()) {
    return {};
  }
  const base::MutexLock lock(mutex_);
  has_answers_.store(false, std::memory_order_relaxed);
  return std::exchange(answers_, {});
}

}  // namespace farandole::engine
