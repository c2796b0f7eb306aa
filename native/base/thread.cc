#include "base/thread.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <utility>

namespace farandole::base {
namespace {

// What sched_setattr(2) takes, in its first version; not every C library declares it.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0;  // for ordinary threads: the length of the turns that they ask for, in ns
  uint64_t deadline = 0;
  uint64_t period = 0;
};
constexpr uint64_t kShortestTurnNs = 100'000;  // the kernel grants no shorter ones

}  // namespace

std::thread start_named_thread(const char* name, std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by the new thread
  std::thread thread(std::move(body));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_setname_np(thread.native_handle(), name);
  return thread;
}

void prefer_short_turns() noexcept {
  SchedulingAttributes attributes;
  // Whatever else was set stays. Failure means only that turns are as long as before.
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0 && attributes.policy == SCHED_OTHER) {
    attributes.runtime = kShortestTurnNs;
    ::syscall(SYS_sched_setattr, 0, &attributes, 0);
  }
}

int64_t involuntary_switches() noexcept {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);  // cannot fail
  return usage.ru_nivcsw;
}

}  // namespace farandole::base
