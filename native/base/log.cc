#include "base/log.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>

namespace farandole::base {
namespace {

std::atomic<int> g_level{static_cast<int>(Level::kWarning)};

// Another thread may log while this is set: the descriptor is stored last.
std::atomic<dev_t> g_copy_device{0};
std::atomic<ino_t> g_copy_inode{0};
std::atomic<int> g_copy_fd{-1};

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

bool is_file(int fd, dev_t device, ino_t inode) noexcept {
  struct stat status{};
  return ::fstat(fd, &status) == 0 && status.st_dev == device && status.st_ino == inode;
}

// The program may have closed the descriptor, and its number may be another file by now.
bool has_copy() noexcept {
  const int fd = g_copy_fd.load(std::memory_order_acquire);
  const dev_t device = g_copy_device.load(std::memory_order_relaxed);
  const ino_t inode = g_copy_inode.load(std::memory_order_relaxed);
  return fd >= 0 && is_file(fd, device, inode) && !is_file(STDERR_FILENO, device, inode);
}

}  // namespace

void set_log_copy(int fd) noexcept {
  struct stat status{};
  const bool is_open = fd >= 0 && ::fstat(fd, &status) == 0;
  g_copy_device.store(status.st_dev, std::memory_order_relaxed);
  g_copy_inode.store(status.st_ino, std::memory_order_relaxed);
  g_copy_fd.store(is_open ? fd : -1, std::memory_order_release);
}

void set_log_level(Level level) noexcept { g_level.store(static_cast<int>(level), std::memory_order_relaxed); }

void log(Level level, int rank, const std::string& text) noexcept {
  if (static_cast<int>(level) < g_level.load(std::memory_order_relaxed)) {
    return;
  }
  const std::string who = rank < 0 ? "farandole " : "farandole [rank " + std::to_string(rank) + "] ";
  const std::string line = who + name_of(level) + ": " + text + "\n";
  // One write, so that lines of several ranks on one terminal do not mix.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  if (level >= Level::kWarning && has_copy()) {
    [[maybe_unused]] const ssize_t copied =
        ::write(g_copy_fd.load(std::memory_order_relaxed), line.data(), line.size());
  }
}

}  // namespace farandole::base
