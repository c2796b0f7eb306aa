// Diagnostics of the core, to standard error, one line at a time: "farandole [rank 3] warning: ...".
#pragma once

#include <string>

namespace farandole::base {

enum class Level : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

// Process-wide, like standard error itself. Set from the settings of the first engine of the process.
void set_log_level(Level level) noexcept;

// Warnings and errors go to this descriptor as well while it stays open and is another file than standard error: to the
// launcher of a worker whose standard error was redirected, as pytest does it. -1: nowhere else. Process-wide.
void set_log_copy(int fd) noexcept;

void log(Level level, int rank, const std::string& text) noexcept;

}  // namespace farandole::base
