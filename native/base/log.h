// Diagnostics of the core, to standard error, one line at a time: "farandole [rank 3] warning: ...".
#pragma once

#include <string>

namespace farandole::base {

enum class Level : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

// Process-wide, like standard error itself. Set from the settings of the first engine of the process.
void set_log_level(Level level) noexcept;

// Warnings and errors also go to this descriptor while it is open, unless it is the same file as standard error. So
// they reach the launcher of a worker whose standard error was redirected, for example by pytest. -1: nowhere else.
// Process-wide.
void set_log_copy(int fd) noexcept;

void log(Level level, int rank, const std::string& text) noexcept;

}  // namespace farandole::base
