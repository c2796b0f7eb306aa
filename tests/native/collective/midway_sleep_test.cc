// Every interleaving of workers that advance their sequences and sleep until all have: see collective/shm_sequence.h,
// and transport/doorbell.h for the doorbell.
//
// A step is one read or write of shared memory. All orders of these steps are tried, so a sleep that nothing ends shows
// as a state in which nothing can happen while a worker is not done. No sleep ends by time here.
#include <gtest/gtest.h>

#include <compare>
#include <cstdint>
#include <deque>
#include <set>

namespace farandole {
namespace {

constexpr uint8_t kMost = 3;
constexpr uint8_t kRounds = 2;
constexpr uint8_t kAwake = 0;

// Faults that the exploration must find.
struct Mutation {
  bool sleeps_without_a_last_look = false;
  bool sleeps_although_it_waits_for_another = false;
};

enum class At : uint8_t { kPublish, kSignal, kRing, kLook, kLieDown, kLastLook, kFallAsleep, kAsleep, kWake, kDone };

struct Worker {
  At at = At::kPublish;
  uint8_t sequence = 0;       // the round in which it is
  uint8_t to_signal = 0;      // the next rank whose doorbell it looks at
  uint8_t arrived = 0;        // so many ranks have been seen in this round
  uint8_t doorbell = kAwake;  // or the awaited rank, counted from 1
  auto operator<=>(const Worker&) const = default;
};

struct Situation {
  Worker workers[kMost];
  auto operator<=>(const Situation&) const = default;
};

class Explorer {
 public:
  Explorer(uint8_t size, Mutation mutation) : size_(size), mutation_(mutation) {}

  // Returns the number of situations in which a worker waits, and nothing will end that.
  size_t stuck() {
    size_t count = 0;
    visit({});
    while (!open_.empty()) {
      const Situation now = open_.front();
      open_.pop_front();
      if (!step_all(now) && !all_done(now)) {
        ++count;
      }
    }
    return count;
  }
  size_t situations() const { return seen_.size(); }

 private:
  void visit(const Situation& situation) {
    if (seen_.insert(situation).second) {
      open_.push_back(situation);
    }
  }

  bool all_done(const Situation& situation) const {
    for (uint8_t rank = 0; rank < size_; ++rank) {
      if (situation.workers[rank].at != At::kDone) {
        return false;
      }
    }
    return true;
  }

  // All situations that may come next; false: there are none.
  bool step_all(const Situation& now) {
    bool any = false;
    for (uint8_t rank = 0; rank < size_; ++rank) {
      if (now.workers[rank].at != At::kAsleep && now.workers[rank].at != At::kDone) {
        Situation next = now;
        step(next, rank);
        visit(next);
        any = true;
      }
    }
    return any;
  }

  void step(Situation& next, uint8_t rank) {
    Worker& worker = next.workers[rank];
    switch (worker.at) {
      case At::kPublish:
        ++worker.sequence;
        worker.to_signal = worker.arrived = 0;
        worker.at = At::kSignal;
        return;
      case At::kSignal:
        look_at_doorbell(next, rank);
        return;
      case At::kRing:
        ring(next, rank);
        return;
      case At::kLook:
        if (!sees_next(next, rank)) {
          worker.at = At::kLieDown;
        }
        return;
      case At::kLieDown:
        worker.doorbell = static_cast<uint8_t>(worker.arrived + 1);
        worker.at = mutation_.sleeps_without_a_last_look ? At::kFallAsleep : At::kLastLook;
        return;
      case At::kLastLook:
        take_last_look(next, rank);
        return;
      case At::kFallAsleep:  // a futex: it does not sleep if the word has changed
        worker.at = worker.doorbell == kAwake ? At::kWake : At::kAsleep;
        return;
      case At::kWake:
        worker.doorbell = kAwake;
        end_round_or(At::kLook, worker);
        return;
      default:
        FAIL();
    }
  }

  void look_at_doorbell(Situation& next, uint8_t rank) const {
    Worker& worker = next.workers[rank];
    if (worker.to_signal == size_) {
      worker.at = At::kLook;
    } else if (next.workers[worker.to_signal].doorbell == rank + 1) {
      worker.at = At::kRing;
    } else {
      ++worker.to_signal;
    }
  }

  static void ring(Situation& next, uint8_t rank) {
    Worker& worker = next.workers[rank];
    Worker& other = next.workers[worker.to_signal++];
    other.doorbell = kAwake;
    if (other.at == At::kAsleep) {
      other.at = At::kWake;
    }
    worker.at = At::kSignal;
  }

  // Looks at the sequence of one rank. Returns whether it has arrived.
  bool sees_next(Situation& next, uint8_t rank) const {
    Worker& worker = next.workers[rank];
    if (next.workers[worker.arrived].sequence < worker.sequence) {
      return false;
    }
    ++worker.arrived;
    end_round_or(worker.at, worker);
    return true;
  }

  void take_last_look(Situation& next, uint8_t rank) const {
    Worker& worker = next.workers[rank];
    const bool awaits_another = worker.doorbell != kAwake && worker.doorbell != worker.arrived + 1;
    if (next.workers[worker.arrived].sequence >= worker.sequence) {
      ++worker.arrived;
      worker.at = worker.arrived == size_ ? At::kWake : At::kLastLook;
    } else {
      const bool begins_again = awaits_another && !mutation_.sleeps_although_it_waits_for_another;
      worker.at = begins_again ? At::kWake : At::kFallAsleep;
    }
  }

  void end_round_or(At otherwise, Worker& worker) const {
    const bool has_all = worker.arrived == size_;
    worker.at = !has_all ? otherwise : worker.sequence == kRounds ? At::kDone : At::kPublish;
  }

  const uint8_t size_;
  const Mutation mutation_;
  std::deque<Situation> open_;
  std::set<Situation> seen_;
};

TEST(MidwaySleep, EveryInterleavingEnds) {
  for (const uint8_t size : {2, 3}) {
    Explorer explorer(size, {});
    EXPECT_EQ(explorer.stuck(), 0U);
    EXPECT_GT(explorer.situations(), 300U);
  }
}

TEST(MidwaySleep, ASleepWithoutALastLookIsFound) {
  EXPECT_GT(Explorer(2, {.sleeps_without_a_last_look = true}).stuck(), 0U);
}

TEST(MidwaySleep, ASleepThatWaitsForAnotherThanAnnouncedIsFound) {
  EXPECT_GT(Explorer(3, {.sleeps_although_it_waits_for_another = true}).stuck(), 0U);
}

}  // namespace
}  // namespace farandole
