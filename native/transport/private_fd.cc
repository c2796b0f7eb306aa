#include "transport/private_fd.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <map>
#include <set>

namespace farandole::transport {
namespace {

struct Memory {
  size_t bytes;
  int fd;
};

struct Table {
  std::mutex mutex;
  std::set<int> fds;                    // guarded by mutex
  std::map<std::byte*, Memory> memory;  // guarded by mutex; by where it is mapped
  int spare = -1;                       // an eventfd without other use, which replaces the sockets in a child
};

// Never destroyed: descriptors may outlive the statics of other files.
Table& table() {
  static Table* const made = [] {
    auto* fresh = new Table;
    fresh->spare = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ::pthread_atfork([] { table().mutex.lock(); }, [] { table().mutex.unlock(); },
                     [] {
                       // Only async-signal-safe calls: other threads of the parent are gone with their locks held.
                       for (const int fd : table().fds) {
                         if (::dup3(table().spare, fd, O_CLOEXEC) < 0) {
                           ::close(fd);
                         }
                       }
                       for (const auto& [base, memory] : table().memory) {
                         // If the system refuses, the memory remains as it is.
                         const int flags = MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED;
                         if (::mmap(base, memory.bytes, PROT_READ | PROT_WRITE, flags, memory.fd, 0) != MAP_FAILED) {
                           ::madvise(base, memory.bytes, MADV_DONTDUMP);
                           // So that the child cannot give the parent's pages back to the system either.
                           ::dup3(table().spare, memory.fd, O_CLOEXEC);
                         }
                       }
                       table().mutex.unlock();
                     });
    return fresh;
  }();
  return *made;
}

}  // namespace

ForkHold::ForkHold() : lock_(table().mutex) {}

PrivateFd::PrivateFd(int fd, const ForkHold&) : fd_(fd) {
  if (fd >= 0) {
    table().fds.insert(fd);
  }
}

void PrivateFd::reset() noexcept {
  if (fd_ < 0) {
    return;
  }
  // Closed under the lock: a fork between the two steps would let the child keep it.
  const std::lock_guard lock(table().mutex);
  table().fds.erase(fd_);
  ::close(fd_);
  fd_ = -1;
}

PrivateInChild::PrivateInChild(std::byte* base, size_t bytes, int fd) : base_(base) {
  const std::lock_guard lock(table().mutex);
  table().memory[base] = {bytes, fd};
}

PrivateInChild::~PrivateInChild() {
  const std::lock_guard lock(table().mutex);
  table().memory.erase(base_);
}

void PrivateInChild::replace(int fd, const ForkHold&) { table().memory[base_].fd = fd; }

}  // namespace farandole::transport
