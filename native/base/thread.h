// Starts a thread of this library in a process that belongs to another program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>

namespace farandole::base {

// The thread blocks all signals, which are meant for the threads of that program. `name` is shown by debuggers and top.
std::thread start_named_thread(const char* name, std::function<void()> body);
template <size_t size>
std::thread start_thread(const char (&name)[size], std::function<void()> body) {
  static_assert(size <= 16, "the kernel refuses names of more than 15 characters");
  return start_named_thread(name, std::move(body));
}

// For a thread that works in short bursts beside others that compute: asks the scheduler for short turns, so that it
// gets them soon after it has something to do. Its share of the processor stays the same. Linux supports this
// since 6.12; elsewhere the call has no effect.
void prefer_short_turns() noexcept;

// How often the calling thread had to leave its core for another thread, also after it yielded it.
int64_t involuntary_switches() noexcept;

}  // namespace farandole::base
