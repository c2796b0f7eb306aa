#include "transport/descriptor_limit.h"

#include <dirent.h>
#include <sys/resource.h>

#include <memory>
#include <string>

#include "base/error.h"

namespace farandole::transport {
namespace {

// A peer has a control connection, and a doorbell or a data connection.
constexpr size_t kForPeer = 2;
// Room for connections that are not proven yet, and for files that the program opens meanwhile.
constexpr size_t kSpare = 32;

// 0 if the system does not say.
size_t count_open() {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc/self/fd"), ::closedir);
  size_t count = 0;
  while (directory != nullptr && ::readdir(directory.get()) != nullptr) {
    ++count;
  }
  return count;
}

}  // namespace

void reserve_descriptors(size_t world_size, size_t from_start) {
  const size_t own = count_open() + kSpare;
  const size_t needed = own + kForPeer * from_start;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || own + kForPeer * (world_size - 1) <= limit.rlim_cur) {
    return;
  }
  if (needed > limit.rlim_max) {
    throw base::Error(base::Code::kUnavailable,
                      "a world of " + std::to_string(world_size) + " workers takes about " + std::to_string(needed) +
                          " open files in each of them, and the hard limit is " + std::to_string(limit.rlim_max) +
                          "; raise it: `ulimit -Hn`, LimitNOFILE= of a systemd service, --ulimit nofile= of a "
                          "container");
  }
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace farandole::transport
