// A stream: a queue of operations, and a thread that runs them one after another, in its own time.
//
// When an operation may begin depends on the mode. Eager: as soon as the thread comes to it. Random: sometimes after a
// delay, by the seed and the number of the stream. Lazy: when the host waits for it, has queried it three times, or
// after a while (FAKE_GPU_LAZY_MS), because real devices run without being queried.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>

#include "cuda/abi.h"

namespace gpu_fake {

struct Stream : std::enable_shared_from_this<Stream> {
 public:
  static std::shared_ptr<Stream> start(Context* context, unsigned flags, int priority);

  Stream(Context* context_, unsigned flags_, int priority_, unsigned number_)
      : context(context_), flags(flags_), priority(priority_), number(number_) {}

  bool is_blocking() const { return (flags & kStreamNonBlocking) == 0; }
  // Queues an operation; returns its number, from 1 on.
  uint64_t push(const char* name, std::function<void()> run);
  uint64_t last();
  bool is_past(uint64_t operation);
  // Returns at once when the context is broken. A host that waits longer than FAKE_GPU_WAIT_LIMIT_S ends the process.
  void wait_past(uint64_t operation, bool is_host = true);

  void hold(bool held);
  // The thread ends when all has run.
  void close();
  // The context broke: queued operations are dropped, and waits end.
  void wake();
  void forbid(std::string why);

  Context* const context;
  const unsigned flags;
  const int priority;
  const unsigned number;
  CaptureStatus capture = kCaptureNone;  // guarded by the lock of the whole GPU

 private:
  struct Operation {
    const char* name;
    std::function<void()> run;
    std::chrono::steady_clock::time_point queued;
  };

  void run();
  bool may_begin() const;
  std::chrono::microseconds delay();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> queue_;
  const char* running_ = nullptr;
  uint64_t pushed_ = 0;
  uint64_t done_ = 0;
  uint64_t wanted_ = 0;  // somebody waits for it
  uint64_t asked_for_ = 0;
  int asked_ = 0;  // how many times, for this operation
  bool held_ = false;
  bool closed_ = false;
  std::string forbidden_;
  // The thread's own.
  std::minstd_rand random_{1};  // NOLINT(bugprone-random-generator-seed): tests choose the seed
  unsigned epoch_ = ~0u;
};

// A place in a stream's order.
struct Mark {
  std::shared_ptr<Stream> stream;
  uint64_t operation = 0;
  std::atomic<int64_t> time_ns{0};  // when the stream came to it

  bool is_done() { return stream->is_past(operation); }
  void wait_on_device() { stream->wait_past(operation, false); }
  void wait_on_host() { stream->wait_past(operation); }
};

}  // namespace gpu_fake
