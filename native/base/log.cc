#include "base/log.h"

#include <unistd.h>

#include <atomic>

namespace farandole::base {
namespace {

std::atomic<int> g_level{static_cast<int>(Level::kWarning)};

const char* name_of(Level level) noexcept {
  switch (level) {
    case Level::kDebug:
      return "debug";
    case Level::kInfo:
      return "info";
    case Level::kWarning:
      return "warning";
    default:
      return "error";
  }
}

}  // namespace

void set_log_level(Level level) noexcept { g_level.store(static_cast<int>(level), std::memory_order_relaxed); }

void log(Level level, int rank, const std::string& text) noexcept {
  if (static_cast<int>(level) < g_level.load(std::memory_order_relaxed)) {
    return;
  }
  const std::string who = rank < 0 ? "farandole " : "farandole [rank " + std::to_string(rank) + "] ";
  const std::string line = who + name_of(level) + ": " + text + "\n";
  // One write, so that lines of several ranks on one terminal do not mix.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace farandole::base
