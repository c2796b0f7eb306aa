// Threads on which XLA goes on with a program after a collective.
//
// A thread that completes a future of XLA's then runs the program's next operations, however long they take. The
// engine's thread must not do that, so each completion is given to an idle thread, and one is started if there is none.
// So a program that computes for long never blocks another one, and there are as many threads as programs that go on at
// the same time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace farandole::jax {

class Continuations {
 public:
  // The one object of the process. Its threads end with the process.
  static Continuations& of_process();

  // Runs it soon on another thread; at once, in the calling thread, if there is no thread and none can be started.
  void run(std::function<void()> continuation);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> waiting_;
  size_t threads_ = 0;
  size_t idle_ = 0;  // of them
};

}  // namespace farandole::jax
