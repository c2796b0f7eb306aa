// Threads of the library in a process that belongs to another program.
#include "base/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>

namespace farandole::base {
namespace {

TEST(Thread, BlocksAllSignals) {
  const auto takes_interrupts = [] {
    sigset_t blocked;
    ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    return ::sigismember(&blocked, SIGINT) == 0;
  };
  bool does = true;
  start_thread("of ours", [&] { does = takes_interrupts(); }).join();
  EXPECT_FALSE(does);
  EXPECT_TRUE(takes_interrupts()) << "the thread that starts one is as it was";
}

TEST(Thread, ShortTurnsDoNotChangeItsShare) {
  int policy = -1;
  int nice_before = -100;
  int nice_after = 100;
  start_thread("short turns", [&] {
    const auto self = static_cast<id_t>(::gettid());
    nice_before = ::getpriority(PRIO_PROCESS, self);
    prefer_short_turns();
    nice_after = ::getpriority(PRIO_PROCESS, self);
    policy = ::sched_getscheduler(0);
  }).join();
  EXPECT_EQ(policy, ::sched_getscheduler(0));
  EXPECT_EQ(nice_after, nice_before);
}

}  // namespace
}  // namespace farandole::base
