#include "backend/mpi/process.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"

namespace farandole::backend::mpi {
namespace {

// The time limit for the other workers to end MPI as well.
constexpr double kFinalizeSeconds = 10;

[[noreturn]] void refuse(const std::string& why) { throw base::Error(base::Code::kUnavailable, why); }

// False: it has not been done by then.
bool wait_until(const Call& call, const base::Deadline& deadline) {
  while (!call.is_done) {
    if (deadline.passed()) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

Process& Process::here() {
  // Never destroyed: its thread may still be inside a call when the process exits.
  static Process* const process = new Process();
  return *process;
}

void Process::require(int code, const char* name) const {
  if (code == kSuccess) {
    return;
  }
  std::array<char, kMaxErrorString> text{};
  int length = 0;
  functions().error_string(code, text.data(), &length);
  refuse(std::string(name) + " of " + version() + " failed: " + text.data());
}

void Process::start(const std::string& library, double patience_seconds) {
  const base::MutexLock lock(mutex_);
  if (given_up_) {
    refuse("MPI cannot be used any more in this process, since a worker of its world was lost; start the job again");
  }
  if (started_) {
    return;
  }
  library_ = load_library(library);
  int flag = 0;
  require(functions().finalized(&flag), "MPI_Finalized");
  if (flag != 0) {
    refuse("MPI was ended in this process (MPI_Finalize) and cannot be started again");
  }
  start_thread();
  require(functions().initialized(&flag), "MPI_Initialized");
  if (flag == 0) {
    initialize(patience_seconds);
  } else {
    int provided = 0;
    require(functions().query_thread(&provided), "MPI_Query_thread");
    if (provided < constants().thread_multiple) {
      refuse(
          "this process has started MPI without MPI_THREAD_MULTIPLE, but farandole calls it from a thread of its "
          "own: start it with MPI_Init_thread(MPI_THREAD_MULTIPLE), as mpi4py does unless told otherwise");
    }
  }
  require(functions().comm_rank(constants().world, &rank_), "MPI_Comm_rank");
  require(functions().comm_size(constants().world, &size_), "MPI_Comm_size");
  started_ = true;
}

void Process::initialize(double patience_seconds) {
  auto provided = std::make_shared<int>(0);  // the thread may outlive our patience
  const auto call = begin([this, provided] {
    require(functions().init_thread(nullptr, nullptr, constants().thread_multiple, provided.get()), "MPI_Init_thread");
  });
  if (!wait_until(*call, base::Deadline::after_seconds(patience_seconds))) {
    give_up();
    refuse("MPI_Init_thread has not returned after " + std::to_string(static_cast<int>(patience_seconds)) +
           " s: do all workers that mpirun or srun started call init(), with this backend? FARANDOLE_START_TIMEOUT "
           "gives more time");
  }
  if (call->error) {
    std::rethrow_exception(call->error);
  }
  owner_ = ::getpid();
  // After the library was loaded, whose own handlers therefore run after this one.
  std::atexit([] { here().finalize(); });
  if (*provided < constants().thread_serialized) {
    refuse(version() +
           " was built without threads, but farandole calls it from threads of its own; load one with them");
  }
  // An error becomes the world's, instead of the end of this process without a word.
  require(functions().comm_set_errhandler(constants().world, constants().errors_return), "MPI_Comm_set_errhandler");
}

void Process::finalize() noexcept {
  if (given_up_ || ::getpid() != owner_) {
    return;
  }
  try {
    int flag = 0;
    functions().finalized(&flag);
    if (flag != 0) {
      return;
    }
    const auto call = begin([this] { functions().finalize(); });
    if (!wait_until(*call, base::Deadline::after_seconds(kFinalizeSeconds))) {
      base::log(base::Level::kWarning, rank_,
                "MPI_Finalize has not returned: other workers have not come to their end");
    }
  } catch (const std::exception& error) {
    base::log(base::Level::kWarning, rank_, std::string("MPI was not ended: ") + error.what());
  }
}

void Process::start_thread() {
  base::start_thread("farandole-mpi", [this] { run_calls(); }).detach();
}

void Process::run_calls() {
  for (;;) {
    std::shared_ptr<Call> call;
    {
      const base::MutexLock lock(calls_mutex_);
      const auto ready = [&] {
        calls_mutex_.assert_held();
        return !calls_.empty();
      };
      if (!called_.wait_for(calls_mutex_, std::chrono::hours(1), ready)) {
        continue;
      }
      call = std::move(calls_.front());
      calls_.pop_front();
    }
    try {
      call->body();
    } catch (...) {
      call->error = std::current_exception();
    }
    call->is_done = true;
  }
}

std::shared_ptr<Call> Process::begin(std::function<void()> body) {
  auto call = std::make_shared<Call>();
  call->body = std::move(body);
  const base::MutexLock lock(calls_mutex_);
  calls_.push_back(call);
  called_.notify_all();
  return call;
}

}  // namespace farandole::backend::mpi
