// Starts a thread of ours in a process that belongs to someone else.
#pragma once

#include <functional>
#include <thread>

namespace farandole::base {

// The thread takes no signals: those are for the threads of the program that we are a guest of. `name` shows in
// debuggers and in top; at most 15 characters.
std::thread start_thread(const char* name, std::function<void()> body);

}  // namespace farandole::base
