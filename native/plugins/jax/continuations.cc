#include "plugins/jax/continuations.h"

#include <system_error>
#include <thread>
#include <utility>

namespace farandole::jax {

Continuations& Continuations::of_process() {
  static auto* const continuations = new Continuations;  // never destroyed: its threads outlive static objects
  return *continuations;
}

void Continuations::run(std::function<void()> continuation) {
  std::unique_lock<std::mutex> lock(mutex_);
  waiting_.push_back(std::move(continuation));
  if (waiting_.size() > idle_) {
    try {
      std::thread([this] { work(); }).detach();
      ++threads_;
    } catch (const std::system_error&) {  // no more threads
      if (threads_ == 0) {
        const std::function<void()> own = std::move(waiting_.back());
        waiting_.pop_back();
        lock.unlock();
        own();
        return;
      }
    }
  }
  lock.unlock();
  posted_.notify_one();
}

void Continuations::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    ++idle_;
    posted_.wait(lock, [this] { return !waiting_.empty(); });
    --idle_;
    const std::function<void()> continuation = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    continuation();
    lock.lock();
  }
}

}  // namespace farandole::jax
