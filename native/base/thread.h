// Starts a thread of this library in a process that belongs to another program.
#pragma once

#include <functional>
#include <thread>

namespace farandole::base {

// The thread takes no signals: those are for the threads of that program. `name` shows in
// debuggers and in top; at most 15 characters.
std::thread start_thread(const char* name, std::function<void()> body);

// For a thread that works in short bursts beside others that compute: asks the scheduler for short turns, so that it
// gets them soon after it has something to do. Its share of the processor stays what it is. Linux knows that from 6.12
// on; elsewhere nothing happens.
void prefer_short_turns() noexcept;

}  // namespace farandole::base
