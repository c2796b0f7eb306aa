// Memory that MPI may read and write.
//
// A collective that has begun cannot be called off: when a worker is lost, MPI (or its network adapter) may still use
// its memory long after. So it is given memory of this kind only, never a user's, and what it may still use when the
// world breaks is left to it for good.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>

#include "transport/arena.h"

namespace farandole::backend::mpi {

class Rooms {
 public:
  // The room that take() needs for this number of bytes.
  static constexpr size_t size_of(size_t bytes) noexcept { return (bytes + kLine - 1) / kLine * kLine; }

  // Makes room for `bytes`, the sum of what size_of() says, and ends what take() gave before.
  void reset(size_t bytes) {
    if (bytes_ < bytes) {
      memory_.reset();
      memory_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kLine})));
      bytes_ = bytes;
    }
    taken_ = 0;
  }
  // The content is undefined.
  template <typename T>
  T* take(size_t count) noexcept {
    std::byte* const at = memory_.get() + taken_;
    taken_ += size_of(count * sizeof(T));
    return reinterpret_cast<T*>(at);
  }
  // MPI may still use what take() gave.
  void leave_to_mpi() noexcept {
    [[maybe_unused]] const std::byte* const given = memory_.release();
    bytes_ = 0;
  }

 private:
  static constexpr size_t kLine = transport::kArenaAlignment;
  struct Free {
    void operator()(std::byte* memory) const noexcept { ::operator delete(memory, std::align_val_t{kLine}); }
  };

  std::unique_ptr<std::byte, Free> memory_;
  size_t bytes_ = 0;
  size_t taken_ = 0;
};

}  // namespace farandole::backend::mpi
