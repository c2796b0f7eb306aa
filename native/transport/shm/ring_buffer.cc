#include "transport/shm/ring_buffer.h"

#include <algorithm>
#include <cstring>

namespace farandole::transport {
namespace {

constexpr uint64_t kMask = RingBuffer::kCapacity - 1;

}  // namespace

std::optional<size_t> RingBuffer::put(std::span<const std::byte> bytes) noexcept {
  const uint64_t at = tail.load(std::memory_order_relaxed);
  const uint64_t held = at - head.load(std::memory_order_acquire);
  if (held > kCapacity) {
    return std::nullopt;
  }
  const size_t count = std::min<size_t>(bytes.size(), kCapacity - held);
  if (count == 0) {
    return 0;
  }
  const size_t until_end = std::min<size_t>(count, kCapacity - (at & kMask));
  std::memcpy(data + (at & kMask), bytes.data(), until_end);
  if (count > until_end) {
    std::memcpy(data, bytes.data() + until_end, count - until_end);
  }
  tail.store(at + count, std::memory_order_release);
  return count;
}

std::optional<RingBuffer::Taken> RingBuffer::take(std::span<std::byte> bytes) noexcept {
  const uint64_t at = head.load(std::memory_order_relaxed);
  const uint64_t held = tail.load(std::memory_order_acquire) - at;
  if (held > kCapacity) {
    return std::nullopt;
  }
  const size_t count = std::min<size_t>(bytes.size(), held);
  if (count == 0) {
    return Taken{};
  }
  const size_t until_end = std::min<size_t>(count, kCapacity - (at & kMask));
  std::memcpy(bytes.data(), data + (at & kMask), until_end);
  if (count > until_end) {
    std::memcpy(bytes.data() + until_end, data, count - until_end);
  }
  head.store(at + count, std::memory_order_release);
  // The buffer may have become full after `held` was read, and the writer may have gone to sleep on that. Looking at
  // `tail` once more, behind a fence, either shows this or lets the writer's last look see the new `head`.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return Taken{count, tail.load(std::memory_order_relaxed) - at >= kCapacity};
}

}  // namespace farandole::transport
