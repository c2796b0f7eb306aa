// A ring buffer of bytes in shared memory with one writer and one reader, in two processes or threads. It lies in the
// writer's arena. Its counters only ever grow, so that full and empty differ; 64 bits of bytes last for ever.
//
// When a writer that found the buffer full sleeps, the reader that makes room must wake it. Both sides store,
// fence, then load what the other one stores, so at least one of them sees the other: see take().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace farandole::transport {

struct RingBuffer {
  static constexpr size_t kCapacity = size_t{1} << 16;  // a power of two

  // Each on its own cache line: each is written by one side and read by the other.
  alignas(64) std::atomic<uint64_t> head{0};  // bytes ever taken, written by the reader
  alignas(64) std::atomic<uint64_t> tail{0};  // bytes ever put, written by the writer
  alignas(64) std::byte data[kCapacity];

  // The writer's side: puts what fits and returns how much; nothing when the counters cannot be right.
  std::optional<size_t> put(std::span<const std::byte> bytes) noexcept;

  struct Taken {
    size_t count = 0;
    bool was_full = false;  // the writer may be waiting for room
  };
  // The reader's side: takes what is there; nothing when the counters cannot be right.
  std::optional<Taken> take(std::span<std::byte> bytes) noexcept;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace farandole::transport
