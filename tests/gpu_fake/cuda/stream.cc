#include "cuda/stream.h"

#include <pthread.h>
#include <signal.h>

#include <thread>

#include "cuda/gpu.h"
#include "cuda/settings.h"

namespace gpu_fake {
namespace {

constexpr int kQuestionsUntilItRuns = 3;

std::chrono::milliseconds lazy_time() {
  static const auto time = std::chrono::milliseconds(number("FAKE_GPU_LAZY_MS", 20));
  return time;
}

std::chrono::seconds wait_limit() {
  static const auto limit = std::chrono::seconds(number("FAKE_GPU_WAIT_LIMIT_S", 100));
  return limit;
}

}  // namespace

std::shared_ptr<Stream> Stream::start(Context* context, unsigned flags, int priority) {
  static std::atomic<unsigned> last_number{0};
  auto stream = std::make_shared<Stream>(context, flags, priority, ++last_number);
  // Signals are for the threads of the program.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread([stream] { stream->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), "fake-gpu-stream");
  thread.detach();
  return stream;
}

uint64_t Stream::push(const char* name, std::function<void()> run) {
  const std::lock_guard lock(mutex_);
  if (!forbidden_.empty()) {
    stop(std::string(name) + " on stream " + std::to_string(number) + ", " + forbidden_);
  }
  queue_.push_back({name, std::move(run), std::chrono::steady_clock::now()});
  changed_.notify_all();
  return ++pushed_;
}

uint64_t Stream::last() {
  const std::lock_guard lock(mutex_);
  return pushed_;
}

bool Stream::is_past(uint64_t operation) {
  const std::lock_guard lock(mutex_);
  if (done_ >= operation) {
    return true;
  }
  asked_ = asked_for_ == operation ? asked_ + 1 : 1;
  asked_for_ = operation;
  if (asked_ >= kQuestionsUntilItRuns && wanted_ < operation) {
    wanted_ = operation;
    changed_.notify_all();
  }
  return false;
}

void Stream::wait_past(uint64_t operation, bool is_host) {
  std::unique_lock lock(mutex_);
  if (wanted_ < operation) {
    wanted_ = operation;
    changed_.notify_all();
  }
  const auto is_over = [&] { return done_ >= operation || context->error != 0; };
  const auto deadline = std::chrono::steady_clock::now() + wait_limit();
  // In slices, because a device that breaks wakes only the streams that still have a handle.
  while (!changed_.wait_for(lock, std::chrono::milliseconds(50), is_over)) {
    if (is_host && std::chrono::steady_clock::now() > deadline) {
      const std::string at = running_ != nullptr ? running_ : held_ ? "nothing: it is held" : "nothing";
      stop("a wait for operation " + std::to_string(operation) + " of stream " + std::to_string(number) + " took " +
           std::to_string(wait_limit().count()) + " s; " + std::to_string(done_) +
           " operations are done, and it runs " + at);
    }
  }
}

void Stream::hold(bool held) {
  const std::lock_guard lock(mutex_);
  held_ = held;
  changed_.notify_all();
}

void Stream::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void Stream::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void Stream::forbid(std::string why) {
  const std::lock_guard lock(mutex_);
  forbidden_ = std::move(why);
}

bool Stream::may_begin() const {
  if (context->error != 0) {
    return true;  // and is dropped
  }
  if (held_ || queue_.empty()) {
    return false;
  }
  return settings_of_time().mode != TimeMode::kLazy || closed_ || wanted_ > done_ ||
         std::chrono::steady_clock::now() >= queue_.front().queued + lazy_time();
}

std::chrono::microseconds Stream::delay() {
  Time& time = settings_of_time();
  if (time.mode != TimeMode::kRandom || time.longest_delay_us == 0) {
    return {};
  }
  if (const unsigned epoch = time.epoch; epoch != epoch_) {
    epoch_ = epoch;
    random_.seed(time.seed * 7919 + number);
  }
  return std::chrono::microseconds(random_() % 4 == 0 ? random_() % time.longest_delay_us : 0);
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (queue_.empty()) {
      if (closed_) {
        return;
      }
      changed_.wait(lock, [&] { return closed_ || !queue_.empty(); });
      continue;
    }
    if (!may_begin()) {
      const bool waits_for_time = !held_;
      if (waits_for_time) {
        changed_.wait_until(lock, queue_.front().queued + lazy_time());
      } else {
        changed_.wait(lock);
      }
      continue;
    }
    {
      const Operation operation = std::move(queue_.front());
      queue_.pop_front();
      running_ = operation.name;
      lock.unlock();
      if (context->error == 0) {
        std::this_thread::sleep_for(delay());
        operation.run();
      }
      // What it holds is let go before anybody sees that it is done.
    }
    lock.lock();
    running_ = nullptr;
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace gpu_fake
