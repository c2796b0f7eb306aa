// Waiting for MPI in one world: nonblocking calls are tested again and again while the links and the status of the
// world are watched, so that a wait ends when a worker is lost, whatever MPI does then.
//
// Nothing signals that MPI has moved on, and MPI moves on only when it is called. So a thread that waits polls: all the
// time at first, if it has its core to itself; else with pauses, which grow with the wait, so that they lengthen it by
// an eighth at most. On a core that other threads need, a thread that polls all the time delays them, and then loses
// its turn to them for milliseconds, while a thread that sleeps gets its turn when it wakes.
//
// Threads: only the thread that makes progress uses it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/mpi/process.h"
#include "transport/frame_multiplexer.h"

namespace farandole::backend::mpi {

// The pause until the next poll, after a wait of this length.
int64_t pause_after(int64_t waited_ns, bool core_is_free) noexcept;

class Progress {
 public:
  // The process outlives it, and the frames its last call: a backend is destroyed after them.
  Progress(transport::FrameMultiplexer& frames, Process& process) : frames_(frames), process_(process) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  transport::FrameMultiplexer& frames() noexcept { return frames_; }
  const Functions& mpi() const noexcept { return process_.functions(); }
  const Constants& constants() const noexcept { return process_.constants(); }
  const void* in_place() const noexcept;

  // Returns whether the request is done or has failed; check() tells which. Lets MPI make progress, and keeps a wait of
  // the frames from sleeping for long, since nothing signals its doorbell when MPI has made progress.
  bool test(Request& request) noexcept;
  // Throws when a test has failed: the world's error if it is about to be revoked, else Error(kUnavailable).
  void check();
  // The same for what a call called `name` returned.
  void require(int code, const char* name);
  void wait(Request& request);
  // Makes a call that may block, on MPI's thread.
  void run(std::function<void()> body);

 private:
  void pause() noexcept;
  [[noreturn]] void fail(int code, const char* name);

  transport::FrameMultiplexer& frames_;
  Process& process_;
  int64_t in_vain_since_ns_ = 0;
  int64_t looked_ns_ = 0;             // when it looked last, if it was to look again at once; else 0
  int64_t core_is_free_from_ns_ = 0;  // as long as it is thought to be needed by others
  int failed_ = kSuccess;
};
static_assert(std::is_trivially_destructible_v<Progress>, "the frames are gone by then");

}  // namespace farandole::backend::mpi
