#include "transport/arena.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "base/error.h"

namespace farandole::transport {
namespace {

using base::Code;
using base::Error;

constexpr size_t kPage = 4096;
constexpr size_t kLeastBytes = 2 * kPage;
constexpr size_t kMostBytes = size_t{1} << 47;  // the address space of a process

constexpr size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

[[noreturn]] void refuse(const std::string& what, size_t bytes, int error) {
  throw Error(Code::kUnavailable, what + " of " + std::to_string(bytes) + " bytes: " + std::strerror(error) +
                                      "; set FARANDOLE_ARENA_BYTES to less, or raise the limits on address space "
                                      "(ulimit -v), file size (ulimit -f) and open files (ulimit -n)");
}

// A sparse file in memory whose size can no longer change: a worker that mapped it cannot be hit by SIGBUS
// because its owner cut it short.
base::UniqueFd make_memory(size_t bytes) {
  // As a system call: glibc has had the function only since 2.27, and the wheel is for older ones, too.
  base::UniqueFd fd(static_cast<int>(::syscall(SYS_memfd_create, "farandole-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    refuse("the system cannot create an arena", bytes, errno);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    refuse("the system cannot seal an arena", bytes, errno);
  }
  return fd;
}

// Maps the memory anywhere, or over `at`.
std::byte* map_memory(int fd, size_t bytes, std::byte* at) {
  const int flags = MAP_SHARED | MAP_NORESERVE | (at != nullptr ? MAP_FIXED : 0);
  void* const base = ::mmap(at, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (base == MAP_FAILED) {
    refuse("the system cannot map an arena", bytes, errno);
  }
  // These are hints, and not available everywhere. Without the second one, a core dump would touch every page.
  ::madvise(base, bytes, MADV_HUGEPAGE);
  ::madvise(base, bytes, MADV_DONTDUMP);
  return static_cast<std::byte*>(base);
}

// Writes all of `from` to the same offsets of `to`.
void write_all(int to, const std::byte* from, size_t offset, size_t end) {
  while (offset < end) {
    const ssize_t written = ::pwrite(to, from + offset, end - offset, static_cast<off_t>(offset));
    if (written < 0 && errno != EINTR) {
      refuse("the system gives no memory to renew an arena", end - offset, errno);
    }
    offset += written < 0 ? 0 : static_cast<size_t>(written);
  }
}

size_t checked_size(size_t bytes) {
  if (bytes < kLeastBytes || bytes > kMostBytes) {
    throw Error(Code::kInvalidArgument, "an arena has from " + std::to_string(kLeastBytes) + " to " +
                                            std::to_string(kMostBytes) + " bytes, not " + std::to_string(bytes) +
                                            ": set FARANDOLE_ARENA_BYTES to such a number, or unset it");
  }
  return round_up(bytes, kPage);
}

}  // namespace

Mapping::Mapping(int fd, size_t bytes) {
  if (bytes == 0) {
    struct stat status{};
    if (::fstat(fd, &status) != 0) {
      refuse("the size of an arena cannot be read", 0, errno);
    }
    bytes = static_cast<size_t>(status.st_size);
  }
  view_ = {map_memory(fd, bytes, nullptr), bytes};
}

Mapping::~Mapping() { ::munmap(view_.base, view_.bytes); }

Arena::Arena(size_t bytes)
    : fd_(make_memory(checked_size(bytes))), mapping_(fd_.get(), 0), in_child_(view().base, view().bytes, fd_.get()) {
  view().header().magic = kArenaMagic;
  view().header().bytes = view().bytes;
  free_[kPage] = view().bytes - kPage;
}

void* Arena::allocate(size_t bytes) {
  if (bytes > view().bytes) {
    return nullptr;
  }
  bytes = round_up(std::max<size_t>(bytes, 1), kArenaAlignment);
  const base::MutexLock lock(mutex_);
  const auto gap = std::find_if(free_.begin(), free_.end(), [bytes](const auto& g) { return g.second >= bytes; });
  if (gap == free_.end()) {
    return nullptr;
  }
  const auto [offset, length] = *gap;
  free_.erase(gap);
  if (length > bytes) {
    free_[offset + bytes] = length - bytes;
  }
  used_[offset] = bytes;
  return view().base + offset;
}

void Arena::release(void* block) {
  if (block == nullptr) {
    return;
  }
  const base::MutexLock lock(mutex_);
  if (held_) {
    kept_aside_.push_back(view().offset_of(block));
  } else {
    free_block(view().offset_of(block));
  }
}

void Arena::hold() {
  const base::MutexLock lock(mutex_);
  held_ = true;
}

void Arena::resume() {
  const base::MutexLock lock(mutex_);
  held_ = false;
  for (const size_t offset : std::exchange(kept_aside_, {})) {
    free_block(offset);
  }
}

void Arena::free_block(size_t at) {
  const auto used = used_.find(at);
  assert(used != used_.end());
  auto [offset, length] = *used;
  used_.erase(used);
  clear(offset, length);  // under the lock: renew() must not come between, and the gap must not be handed out yet

  const auto after = free_.find(offset + length);
  if (after != free_.end()) {
    length += after->second;
    free_.erase(after);
  }
  const auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += length;
      return;
    }
  }
  free_[offset] = length;
}

// Free memory is always zero. Whole pages go back to the system, which zeroes them when they are touched again;
// what the block shares a page with is another block's.
void Arena::clear(size_t offset, size_t bytes) noexcept {
  const size_t first = round_up(offset, kPage);
  const size_t last = (offset + bytes) / kPage * kPage;
  const bool punched = first < last && ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                                   static_cast<off_t>(first), static_cast<off_t>(last - first)) == 0;
  if (!punched) {
    std::memset(view().base + offset, 0, bytes);
    return;
  }
  std::memset(view().base + offset, 0, first - offset);
  std::memset(view().base + last, 0, offset + bytes - last);
}

void Arena::renew() {
  const base::MutexLock lock(mutex_);
  base::UniqueFd fresh = make_memory(view().bytes);
  const auto size = static_cast<off_t>(view().bytes);
  off_t from = 0;
  // Only what was ever touched is copied; SEEK_DATA fails with ENXIO behind the last of it.
  while ((from = ::lseek(fd_.get(), from, SEEK_DATA)) >= 0 && from < size) {
    const off_t to = ::lseek(fd_.get(), from, SEEK_HOLE);
    write_all(fresh.get(), view().base, static_cast<size_t>(from), static_cast<size_t>(to));
    from = to;
  }
  const ForkHold hold;  // A child that is forked between these steps would map the old memory.
  map_memory(fresh.get(), view().bytes, view().base);
  in_child_.replace(fresh.get(), hold);
  fd_ = std::move(fresh);
}

}  // namespace farandole::transport
