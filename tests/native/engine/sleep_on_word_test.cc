// Every interleaving of workers that announce one request, sleep, and are woken: see engine/shm_agreement.h.
//
// The word is the engine's own code; what a worker does with it, and the doorbell on which it sleeps, are steps here,
// of one atomic operation each. All orders of these steps are tried, so a sleep that nothing ends shows as a state in
// which nothing can happen while a worker is not done. No sleep ends by time here.
#include <gtest/gtest.h>

#include <compare>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "engine/shm_agreement.h"

namespace farandole {
namespace {

using engine::ShmAgreement;
using State = ShmAgreement::State;

constexpr uint32_t kNumber = 5;
constexpr int kMost = 4;

// What a worker does about the number, apart from waiting.
enum class Part : uint8_t {
  kAnnounces,         // the request that most announce
  kAnnouncesAnother,  // under another bit
  kCloses,            // asks by message
  kSubmits,           // announces; then another thread of it submits something, with which its sleeper closes the word
  kIsRevoked,         // announces; then its watch thread revokes the world
  kDies,              // announces, unless it dies before; the watch threads of the others revoke their worlds then
};

// Faults that the exploration must find.
struct Mutation {
  bool sleeps_without_a_last_look = false;
  bool wakes_nobody = false;
};

enum class At : uint8_t { kStart, kLook, kLieDown, kLastLook, kFallAsleep, kAsleep, kWake, kDone, kDead };
enum class Alarm : uint8_t { kNone, kToSet, kToSignal, kOver };

struct Worker {
  At at = At::kStart;
  State seen = State::kOpen;  // how it ended, when it is done
  bool sleeping = false;      // its doorbell's word
  bool told = false;          // another thread of it has something for its sleeper
  bool saw_told = false;      // it has dealt with that
  Alarm alarm = Alarm::kNone;
  uint8_t to_wake = 0;     // the next rank that it signals; as many as there are workers: none
  bool found_one = false;  // that rank sleeps, and is to be woken next
  auto operator<=>(const Worker&) const = default;
};

struct Situation {
  uint64_t word = 0;
  Worker workers[kMost];
  auto operator<=>(const Situation&) const = default;
};

class Explorer {
 public:
  Explorer(std::vector<Part> parts, Mutation mutation) : parts_(std::move(parts)), mutation_(mutation) {}

  struct Findings {
    size_t situations = 0;
    size_t stuck = 0;     // a worker waits, and nothing will end that
    size_t disagree = 0;  // one runs the request, another one reports it
  };

  Findings run() {
    Situation first;
    for (size_t rank = 0; rank < parts_.size(); ++rank) {
      const Part part = parts_[rank];
      const bool has_alarm = part == Part::kSubmits || part == Part::kIsRevoked;
      first.workers[rank].alarm = has_alarm ? Alarm::kToSet : Alarm::kNone;
      first.workers[rank].to_wake = static_cast<uint8_t>(parts_.size());
    }
    visit(first);
    while (!open_.empty()) {
      const Situation now = open_.front();
      open_.pop_front();
      if (!step_all(now)) {
        judge(now);
      }
    }
    findings_.situations = seen_.size();
    return findings_;
  }

 private:
  void visit(const Situation& situation) {
    if (seen_.insert(situation).second) {
      open_.push_back(situation);
    }
  }

  // All situations that may come next; false: there are none.
  bool step_all(const Situation& now) {
    bool any = false;
    for (size_t rank = 0; rank < parts_.size(); ++rank) {
      any |= step_worker(now, rank);
      any |= step_alarm(now, rank);
      any |= step_death(now, rank);
    }
    return any;
  }

  bool step_worker(Situation next, size_t rank) {
    Worker& worker = next.workers[rank];
    if (worker.at == At::kDead || worker.at == At::kAsleep) {
      return false;
    }
    if (worker.to_wake < parts_.size()) {
      wake_next(next, rank);
      visit(next);
      return true;
    }
    if (worker.at == At::kDone) {
      return false;
    }
    act(next, rank);
    visit(next);
    return true;
  }

  void act(Situation& next, size_t rank) {
    Worker& worker = next.workers[rank];
    switch (worker.at) {
      case At::kStart:
        begin(next, rank);
        return;
      case At::kLook:
        worker.at = is_settled(next, rank) ? At::kDone : At::kLieDown;
        return;
      case At::kLieDown:
        worker.sleeping = true;
        worker.at = mutation_.sleeps_without_a_last_look ? At::kFallAsleep : At::kLastLook;
        return;
      case At::kLastLook:
        worker.at = is_settled(next, rank) ? At::kWake : At::kFallAsleep;
        return;
      case At::kFallAsleep:  // a futex: it does not sleep if the word has changed
        worker.at = worker.sleeping ? At::kAsleep : At::kWake;
        return;
      case At::kWake:
        worker.sleeping = false;
        worker.at = At::kLook;
        return;
      default:
        FAIL();
    }
  }

  void begin(Situation& next, size_t rank) {
    const Part part = parts_[rank];
    ShmAgreement::Change change{};
    with_word(next, [&](ShmAgreement& agreement) {
      change = part == Part::kCloses ? agreement.close(kNumber)
                                     : agreement.announce(kNumber, part == Part::kAnnouncesAnother ? 2 : 1);
    });
    end_change(next.workers[rank], change);
    next.workers[rank].at = At::kLook;
  }

  // Whether this worker need not wait any more. One that is told something closes the word first.
  bool is_settled(Situation& next, size_t rank) {
    Worker& worker = next.workers[rank];
    with_word(next, [&](ShmAgreement& agreement) {
      worker.seen = agreement.look(kNumber);
      if (worker.seen == State::kOpen && worker.told && !worker.saw_told && parts_[rank] == Part::kSubmits) {
        worker.saw_told = true;
        end_change(worker, agreement.close(kNumber));
        worker.seen = agreement.look(kNumber);
      }
    });
    return worker.seen != State::kOpen || (worker.told && parts_[rank] != Part::kSubmits);
  }

  void end_change(Worker& worker, ShmAgreement::Change change) const {
    worker.to_wake = change.wakes && !mutation_.wakes_nobody ? 0 : static_cast<uint8_t>(parts_.size());
  }

  // One step of Doorbell::signal(): it looks, and if the other one sleeps, it exchanges the word and wakes it.
  void wake_next(Situation& next, size_t rank) {
    Worker& worker = next.workers[rank];
    if (worker.to_wake == rank || signal_step(next.workers[worker.to_wake], worker.found_one)) {
      ++worker.to_wake;
    }
  }

  // True when it is done.
  static bool signal_step(Worker& other, bool& found) {
    if (!found && other.sleeping) {
      found = true;
      return false;
    }
    if (found && other.sleeping) {
      other.sleeping = false;
      other.at = other.at == At::kAsleep ? At::kWake : other.at;
    }
    found = false;
    return true;
  }

  bool step_alarm(Situation next, size_t rank) {
    Worker& worker = next.workers[rank];
    if (worker.at == At::kDead || (worker.alarm != Alarm::kToSet && worker.alarm != Alarm::kToSignal)) {
      return false;
    }
    if (worker.alarm == Alarm::kToSet) {
      worker.told = true;
      worker.alarm = Alarm::kToSignal;
    } else {
      bool found = worker.sleeping;
      signal_step(worker, found);
      worker.alarm = Alarm::kOver;
    }
    visit(next);
    return true;
  }

  bool step_death(Situation next, size_t rank) {
    Worker& worker = next.workers[rank];
    if (parts_[rank] != Part::kDies || worker.at == At::kDead || worker.at == At::kDone) {
      return false;
    }
    worker = {};
    worker.at = At::kDead;
    for (Worker& other : next.workers) {
      if (&other != &worker) {
        other.alarm = Alarm::kToSet;
      }
    }
    visit(next);
    return true;
  }

  template <typename Use>
  static void with_word(Situation& situation, Use&& use) {
    static transport::ArenaHeader header{};
    header.shm_agreement[kNumber % 2] = situation.word;
    ShmAgreement agreement(&header, size_);
    use(agreement);
    situation.word = header.shm_agreement[kNumber % 2];
  }

  void judge(const Situation& last) {
    bool runs = false;
    bool reports = false;
    for (size_t rank = 0; rank < parts_.size(); ++rank) {
      const Worker& worker = last.workers[rank];
      if (worker.at != At::kDone && worker.at != At::kDead) {
        ++findings_.stuck;
        return;
      }
      runs |= worker.at == At::kDone && worker.seen == State::kAll;
      reports |= worker.at == At::kDone && worker.seen == State::kClosed;
    }
    findings_.disagree += runs && reports ? 1 : 0;
  }

 public:
  static inline int size_ = 0;

 private:
  const std::vector<Part> parts_;
  const Mutation mutation_;
  std::set<Situation> seen_;
  std::deque<Situation> open_;
  Findings findings_;
};

Explorer::Findings explore(const std::vector<Part>& parts, Mutation mutation = {}) {
  Explorer::size_ = static_cast<int>(parts.size());
  return Explorer(parts, mutation).run();
}

constexpr Part kAllParts[] = {Part::kAnnounces, Part::kAnnouncesAnother, Part::kCloses,
                              Part::kSubmits,   Part::kIsRevoked,        Part::kDies};

TEST(SleepOnWord, EverySleepEndsAndAllAgree) {
  size_t situations = 0;
  for (const Part second : kAllParts) {
    for (const Part third : kAllParts) {
      const Explorer::Findings found = explore({Part::kAnnounces, second, third});
      EXPECT_EQ(found.stuck, 0U) << static_cast<int>(second) << ", " << static_cast<int>(third);
      EXPECT_EQ(found.disagree, 0U) << static_cast<int>(second) << ", " << static_cast<int>(third);
      situations += found.situations;
    }
    EXPECT_EQ(explore({Part::kAnnounces, second}).stuck, 0U);
  }
  EXPECT_GT(situations, 10'000U);
}

TEST(SleepOnWord, SleepWithoutLastCheckIsFound) {
  const Mutation mutation{.sleeps_without_a_last_look = true};
  EXPECT_GT(explore({Part::kAnnounces, Part::kAnnounces}, mutation).stuck, 0U);
  EXPECT_GT(explore({Part::kAnnounces, Part::kAnnounces, Part::kCloses}, mutation).stuck, 0U);
}

TEST(SleepOnWord, ChangeWithoutWakeUpIsFound) {
  const Mutation mutation{.wakes_nobody = true};
  EXPECT_GT(explore({Part::kAnnounces, Part::kAnnounces}, mutation).stuck, 0U);
  EXPECT_GT(explore({Part::kAnnounces, Part::kAnnouncesAnother}, mutation).stuck, 0U);
  EXPECT_GT(explore({Part::kAnnounces, Part::kCloses}, mutation).stuck, 0U);
}

}  // namespace
}  // namespace farandole
