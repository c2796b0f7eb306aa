// MPI in this process: who starts it, and who ends it.
//
// MPI belongs to the whole process, and can be started once and ended once. So the engines of a process share it. If it
// has not been started when the first engine needs it (mpi4py may have done so), it is started here, and also ended
// here when the process exits. After a world has broken, MPI is not called any more, not even to end it, because its
// behavior is undefined once a process is lost.
//
// Threads: MPI is started and ended, and calls that may block are made, by one thread of its own, so that a thread that
// waits for such a call can stop waiting when a worker is lost. That thread and the one that makes progress call MPI in
// turns.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "backend/mpi/library.h"
#include "base/mutex.h"

namespace farandole::backend::mpi {

// A call that MPI's thread makes.
struct Call {
  std::function<void()> body;
  std::atomic<bool> is_done = false;
  std::exception_ptr error;  // to be read once it is done
};

class Process {
 public:
  // The one of this process.
  static Process& here();

  // Loads the library and starts MPI, unless that has been done. Throws Error(kUnavailable) when it cannot be used or
  // has not started after this time.
  void start(const std::string& library, double patience_seconds);

  // These describe the library that has been started.
  const Functions& functions() const noexcept { return library_->functions; }
  const Constants& constants() const noexcept { return library_->constants; }
  const std::string& version() const noexcept { return library_->version; }
  int rank() const noexcept { return rank_; }  // in MPI_COMM_WORLD
  int size() const noexcept { return size_; }

  // Hands a call to MPI's thread.
  std::shared_ptr<Call> begin(std::function<void()> body);
  // A world has broken: MPI is not to be used any more.
  void give_up() noexcept { given_up_ = true; }
  bool given_up() const noexcept { return given_up_; }

  // Throws Error(kUnavailable) for what an MPI function called `name` returned, unless it is success.
  void require(int code, const char* name) const;

 private:
  Process() = default;
  void start_thread() REQUIRES(mutex_);
  void run_calls();
  void initialize(double patience_seconds) REQUIRES(mutex_);
  void finalize() noexcept;

  base::Mutex mutex_;  // of start()
  bool started_ GUARDED_BY(mutex_) = false;
  std::optional<Library> library_;
  int rank_ = -1;
  int size_ = 0;
  int owner_ = 0;  // the process that started MPI: a child that it forks must not end it
  std::atomic<bool> given_up_ = false;

  base::Mutex calls_mutex_;
  base::Condition called_;
  std::deque<std::shared_ptr<Call>> calls_ GUARDED_BY(calls_mutex_);
};

}  // namespace farandole::backend::mpi
