// A file descriptor that a forked child does not keep.
//
// A training script may fork (a DataLoader's workers are forked by default). A child that kept our sockets
// would keep them open after its parent died, and the other workers would not notice the death. So every
// socket of this room is entered in a process-wide table, and the child, before fork() returns in it, puts an
// empty descriptor in the place of each: the connection is let go, and the number stays taken, so that closing
// it later in the child cannot hit a descriptor that is not ours. The table is the one exception to "nothing
// is global": fork() concerns the whole process.
//
// It also has the memory in which a worker's tensors live. A child must not write into its parent's gradients:
// it gets a mapping of its own, whose pages are copied when it writes to them. What it has not written to yet
// still changes with its parent's, as Linux has no mapping that is shared and is copied by a fork.
#pragma once

#include <cstddef>
#include <mutex>
#include <utility>

namespace farandole::transport {

// While one exists, this process does not fork: hold it from the making of a descriptor until that is entered
// in the table. Do not hold it across anything that blocks.
class ForkHold {
 public:
  ForkHold();

 private:
  std::lock_guard<std::mutex> lock_;
};

class PrivateFd {
 public:
  PrivateFd() noexcept = default;
  // Owns `fd`; a negative one stands for none.
  PrivateFd(int fd, const ForkHold&);
  PrivateFd(PrivateFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  PrivateFd& operator=(PrivateFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~PrivateFd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void reset() noexcept;

 private:
  int fd_ = -1;
};

// Shared memory that is private in a forked child.
class PrivateInChild {
 public:
  // `bytes` of memory are mapped at `base`, and have the descriptor `fd`; all of it must outlive this.
  PrivateInChild(std::byte* base, size_t bytes, int fd);
  ~PrivateInChild();
  PrivateInChild(const PrivateInChild&) = delete;
  PrivateInChild& operator=(const PrivateInChild&) = delete;
  // Other memory is mapped there now.
  void replace(int fd, const ForkHold&);

 private:
  std::byte* base_;
};

}  // namespace farandole::transport
