// Memory of a worker that the other workers of its host can read and write: a sparse memfd, mapped shared.
//
//   [ ArenaHeader, one page ][ blocks, handed out by allocate() ... ]
//
// An Arena belongs to one worker and outlives generations: tensors live in it. Other workers map it as an
// ArenaView. Pages exist only once touched.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "transport/private_fd.h"

namespace farandole::transport {

inline constexpr uint64_t kArenaMagic = 0x35414e4152414e46;  // "FNARANA5"
inline constexpr size_t kArenaAlignment = 64;                // a cache line: blocks never share one

inline constexpr uint64_t kNoGeneration = UINT64_MAX;

// Places where a worker announces data to the others of its host: see collective/shm_sequence.h.
inline constexpr int kWindows = 5;

// The memory that the workers of a host share. Zeroed for every generation, except for the lifeline.
struct ArenaHeader {
  uint64_t magic;
  uint64_t bytes;
  // The generation that this memory serves, or kNoGeneration. The owner changes it before it changes anything
  // else for a new generation. A worker that has read data here compares it afterwards, and discards what it
  // has read if the owner has gone on (see ArenaView::serves).
  std::atomic<uint64_t> generation;
  alignas(64) std::atomic<uint32_t> sleeping;  // see doorbell.h
  // Counted up by the workers of the host after they have sent something to the owner: see frame_multiplexer.h.
  alignas(64) std::atomic<uint64_t> mail;
  // The owner's progress, as collective/shm_sequence.h describes it. Written by the owner, read by the workers of its
  // host.
  alignas(64) std::atomic<uint64_t> sequence;
  // The places in this arena of the data that others read now, as collective/shm_sequence.h describes them.
  std::atomic<uint64_t> offset[kWindows];
  // In rank 0's arena only: agreement without messages, as in engine/shm_agreement.h.
  alignas(64) std::atomic<uint64_t> shm_agreement[2];
  std::atomic<int32_t> shm_agreement_last[2];
  std::atomic<uint32_t> shm_agreement_forbidden;
  // Shows whether the owner lives, in any generation, or has died, as lifeline.h describes.
  alignas(64) std::atomic<uint32_t> lifeline;
};
static_assert(sizeof(ArenaHeader) <= 4096);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// A mapping of a worker's arena, which may be its own.
struct ArenaView {
  std::byte* base = nullptr;
  size_t bytes = 0;

  ArenaHeader& header() const noexcept { return *reinterpret_cast<ArenaHeader*>(base); }
  bool contains(const void* address, size_t count) const noexcept {
    const auto at = reinterpret_cast<uintptr_t>(address);
    const auto from = reinterpret_cast<uintptr_t>(base);
    return at >= from && count <= bytes && at - from <= bytes - count;
  }
  // Whether everything that was read from here until now belonged to this generation.
  bool serves(uint64_t generation) const noexcept {
    std::atomic_thread_fence(std::memory_order_acquire);
    return header().generation.load(std::memory_order_relaxed) == generation;
  }
  // Called by the owner: later contents belong to this generation. Workers that still read for another one notice it.
  void serve(uint64_t generation) const noexcept {
    header().generation.store(generation, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  size_t offset_of(const void* address) const noexcept {
    return static_cast<size_t>(static_cast<const std::byte*>(address) - base);
  }
};

// A mapped memfd; unmaps itself.
class Mapping {
 public:
  // Maps `bytes` of `fd`, or of its whole size when 0. Throws Error(kUnavailable).
  Mapping(int fd, size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  const ArenaView& view() const noexcept { return view_; }

 private:
  ArenaView view_;
};

class Arena {
 public:
  // Reserves `bytes` of address space; memory is used as it is touched. Throws Error(kUnavailable).
  explicit Arena(size_t bytes);

  // Returns a block of zeros, aligned to kArenaAlignment, or null when no gap is large enough. Any thread.
  void* allocate(size_t bytes);
  // Gives the block and its memory back. `block` comes from allocate() or is null. Any thread.
  void release(void* block);

  // A world has broken off: until the next one has formed, workers that have yet to hear of it may still write
  // results into blocks of its collectives. From hold() on, released blocks are kept aside; resume() frees them.
  void hold();
  void resume();

  // Puts new memory with the same content behind the same addresses. Workers that mapped the arena before
  // keep the old memory: whatever they still write there is not seen here. No thread may write to a block
  // meanwhile. Throws Error(kUnavailable), and then nothing has changed.
  void renew();

  const ArenaView& view() const noexcept { return mapping_.view(); }
  // The descriptor of the memory behind the arena; it changes with renew().
  int fd() const noexcept { return fd_.get(); }

 private:
  void free_block(size_t at) REQUIRES(mutex_);
  void clear(size_t offset, size_t bytes) noexcept REQUIRES(mutex_);

  base::UniqueFd fd_;
  Mapping mapping_;
  PrivateInChild in_child_;
  base::Mutex mutex_;
  std::map<size_t, size_t> free_ GUARDED_BY(mutex_);  // offset -> length of each gap
  std::map<size_t, size_t> used_ GUARDED_BY(mutex_);  // offset -> length of each block
  bool held_ GUARDED_BY(mutex_) = false;
  std::vector<size_t> kept_aside_ GUARDED_BY(mutex_);  // offsets of blocks released meanwhile
};

}  // namespace farandole::transport
