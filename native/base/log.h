// Diagnostics of the core, to standard error, one line at a time: "farandole [rank 3] warning: ...".
#pragma once

#include <string>

namespace farandole::base {

enum class Level : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

// Process-wide, like standard error itself. Set from the settings of the first engine of the process.
void set_log_level(Level level) noexcept;

void log(Level level, int rank, const std::string& text) noexcept;

}  // namespace farandole::base
