// The engine's actions and their times, which timelines read.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "engine/event_ring.h"
#include "engine/request.h"

namespace farandole::engine {

// The numbers are part of the C ABI.
enum class Phase : uint32_t {
  kSubmitted = 0,
  kAgreed = 1,
  kStarted = 2,  // of a bucket
  kMoved = 4,    // of a bucket: the collective has ended
  kDone = 6,
  kFailed = 7,
  kWoke = 8,       // the engine thread had slept and has something to do
  kRankReady = 9,  // rank 0 only: a rank has reported a request
  kRound = 10,     // a decision about requests has come
};

inline constexpr uint32_t kNone = UINT32_MAX;

struct Event {
  int64_t time_ns = 0;
  uint64_t bytes = 0;
  Phase phase = Phase::kSubmitted;
  Kind kind = Kind::kAllreduce;
  uint32_t group = 0;
  uint32_t algorithm = kNone;
  uint32_t bucket = kNone;
  uint32_t name = kNone;
  int32_t rank = -1;  // of kRankReady
};

class Events {
 public:
  // For the thread with the progress lock.
  void record(const Event& event) noexcept { ring_.record(event); }
  // Returns the number that stands for a request's name in events; kNone once too many different names have been seen.
  // Remembers the signature as the last one of that name.
  uint32_t number_of(const std::string& name, const Signature& signature);
  // The name, or an empty one. The text lives as long as this object.
  const std::string& name_of(uint32_t number) const;
  // "float32 [3, 4]", or nothing.
  std::string signature_of(uint32_t number) const;

  // As EventRing::read(). Any thread.
  size_t read(uint64_t& cursor, std::span<Event> into, uint64_t& lost) noexcept {
    are_read_.store(true, std::memory_order_relaxed);
    return ring_.read(cursor, into, lost);
  }
  // Returns whether events have ever been read: those that cost more to record are recorded only then.
  bool are_read() const noexcept { return are_read_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kCapacity = size_t{1} << 14;
  static constexpr size_t kMaxNames = size_t{1} << 16;

  std::atomic<bool> are_read_{false};
  EventRing<Event, kCapacity> ring_;
  mutable base::Mutex mutex_;  // of names
  struct Name {
    const std::string* text;
    std::string type;
    std::vector<int64_t> shape;
  };
  std::unordered_map<std::string, uint32_t> names_ GUARDED_BY(mutex_);  // its nodes never move
  std::vector<Name> by_number_ GUARDED_BY(mutex_);
};

}  // namespace farandole::engine
