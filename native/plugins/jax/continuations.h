// Threads on which XLA goes on with a program after a collective.
//
// A thread that completes a future of XLA's runs what the program does next, however long that takes. The engine's
// thread must not, so each completion is given to a thread that has nothing else to do; where none has, one is started.
// So a program that computes for long never keeps another one from going on, and there are as many threads as programs
// that go on at the same time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace farandole::jax {

class Continuations {
 public:
  // The process's one, whose threads end with the process.
  static Continuations& of_process();

  // Runs it soon on another thread; at once, if no thread can be started and none is there.
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
