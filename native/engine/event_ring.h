// The last events, in a ring buffer without a mutex: each call of a collective records several, and hardly ever does
// anything read them.
//
// One thread at a time writes; any thread may read meanwhile. A reader copies events, and then looks which of their
// places the writer has begun to overwrite: those copies may be mixed, so it drops them. The fences order, for the
// writer, that it says so before it overwrites and, for the reader, that it looks after it has copied.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace farandole::engine {

template <typename Event, size_t kCapacity>
class EventRing {
 public:
  // For the writer.
  void record(const Event& event) noexcept {
    const uint64_t number = written_.load(std::memory_order_relaxed);
    begun_.store(number + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    Words words;
    std::memcpy(words.data(), &event, sizeof event);
    Place& place = places_[number % kCapacity];
    for (size_t i = 0; i < words.size(); ++i) {
      place[i].store(words[i], std::memory_order_relaxed);
    }
    written_.store(number + 1, std::memory_order_release);
  }

  // Copies events that came after `cursor` (0: the oldest still there), in order, and moves the cursor. Adds to `lost`
  // those that were overwritten unread. Returns how many were copied.
  size_t read(uint64_t& cursor, std::span<Event> into, uint64_t& lost) const noexcept {
    const uint64_t end = std::min(written_.load(std::memory_order_acquire), std::max(cursor, oldest()) + into.size());
    const uint64_t first = std::min(std::max(cursor, oldest()), end);
    for (uint64_t number = first; number < end; ++number) {
      into[number - first] = copy(number);
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    const uint64_t kept = std::clamp(oldest(), first, end);
    std::copy(into.begin() + static_cast<ptrdiff_t>(kept - first), into.begin() + static_cast<ptrdiff_t>(end - first),
              into.begin());
    lost += kept - std::min(cursor, kept);
    cursor = std::max(cursor, end);
    return end - kept;
  }

 private:
  static_assert(std::is_trivially_copyable_v<Event> && sizeof(Event) % sizeof(uint64_t) == 0);
  using Words = std::array<uint64_t, sizeof(Event) / sizeof(uint64_t)>;
  using Place = std::array<std::atomic<uint64_t>, sizeof(Event) / sizeof(uint64_t)>;

  // The number of the oldest event whose place is not being overwritten.
  uint64_t oldest() const noexcept {
    const uint64_t begun = begun_.load(std::memory_order_relaxed);
    return begun > kCapacity ? begun - kCapacity : 0;
  }

  Event copy(uint64_t number) const noexcept {
    const Place& place = places_[number % kCapacity];
    Words words;
    for (size_t i = 0; i < words.size(); ++i) {
      words[i] = place[i].load(std::memory_order_relaxed);
    }
    Event event;
    std::memcpy(static_cast<void*>(&event), words.data(), sizeof event);
    return event;
  }

  std::vector<Place> places_ = std::vector<Place>(kCapacity);
  std::atomic<uint64_t> begun_ = 0;    // how many events the writer has begun to write
  std::atomic<uint64_t> written_ = 0;  // and has written
};

}  // namespace farandole::engine
