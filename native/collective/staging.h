// Memory for data that lies outside of any arena, on its way to others.
//
// Each window (see shm_sequence.h) has a piece of this worker's arena: data that other workers of the host are to read
// there is copied into it. There is also private memory, for data on its way between a tensor and a link.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "collective/shm_sequence.h"

namespace farandole::collective {

class Staging {
 public:
  // `memory` lies in the own arena and is kWindows * piece_bytes long.
  Staging(ShmSequence& sequence, std::byte* memory, size_t piece_bytes)
      : sequence_(sequence), memory_(memory), piece_bytes_(piece_bytes) {}

  size_t piece_bytes() const noexcept { return piece_bytes_; }
  // The piece of this window, once nobody reads it any more.
  std::byte* acquire(int window) {
    sequence_.settle(window);
    return memory_ + static_cast<size_t>(window) * piece_bytes_;
  }
  // Memory of this worker alone, at least `bytes` long and aligned as an arena's; its content is undefined. There are
  // two lanes of it, for two users at a time; each call invalidates the memory that the last call on its lane returned.
  std::byte* private_memory(int lane, size_t bytes);

 private:
  struct Private {
    std::unique_ptr<std::byte[]> memory;
    size_t bytes = 0;
  };

  ShmSequence& sequence_;
  std::byte* const memory_;
  const size_t piece_bytes_;
  std::array<Private, 2> private_;
};

}  // namespace farandole::collective
