// Every interleaving of workers that make small calls one after another on the fast path: see engine/shm_agreement.h
// and collective/shm_sequence.h.
//
// The words are the engine's own code; what a worker does besides is a step here, of one read or write of shared memory
// each. All orders of these steps are tried. A worker stages its data in a window before it announces the call. The
// last one to announce it first reads the windows of all and leaves the result in its own, from where the others take
// it when all have announced the call.
#include <gtest/gtest.h>

#include <algorithm>
#include <compare>
#include <deque>
#include <functional>
#include <set>

#include "engine/shm_agreement.h"

namespace farandole {
namespace {

using engine::ShmAgreement;

constexpr int kMost = 3;
constexpr uint8_t kCalls = 4;
constexpr uint32_t kBit = 1;

// Changes of the protocol, whose effects the exploration must find.
struct Mutation {
  bool one_window = false;
  bool waits_for_no_reader = false;
  bool announces_before_the_result = false;
};

enum class At : uint8_t { kStage, kAnnounce, kRead, kReduce, kAnnounceAsLast, kLook, kTake, kPublish, kDone };

// What a window holds.
struct Window {
  uint8_t call = 0;
  bool is_result = false;
  auto operator<=>(const Window&) const = default;
};

struct Worker {
  At at = At::kStage;
  uint8_t call = 1;
  uint8_t to_read = 0;   // the next rank whose window it reads
  uint8_t sequence = 0;  // the call whose result it has taken
  Window window[2];
  uint8_t lent[2] = {};  // the sequence that all must have reached before something else is put there
  auto operator<=>(const Worker&) const = default;
};

struct Situation {
  uint64_t words[2] = {};
  int last[2] = {};
  Worker workers[kMost];
  auto operator<=>(const Situation&) const = default;
};

struct Findings {
  size_t situations = 0;
  bool waits_for_readers = false;  // a worker must wait before it can stage
  bool reads_wrong_call = false;
  bool takes_wrong_result = false;
  bool does_not_agree = false;
  bool ends = false;
};

class Exploration {
 public:
  Exploration(int size, Mutation mutation) : size_(size), mutation_(mutation) {
    visit({});
    while (!open_.empty()) {
      const Situation situation = open_.front();
      open_.pop_front();
      for (int rank = 0; rank < size_; ++rank) {
        step(situation, rank);
      }
    }
    findings.situations = seen_.size();
  }

  Findings findings;

 private:
  void visit(const Situation& situation) {
    if (seen_.insert(situation).second) {
      open_.push_back(situation);
    }
    findings.ends |= std::all_of(situation.workers, situation.workers + size_,
                                 [](const Worker& worker) { return worker.at == At::kDone; });
  }

  void step(Situation situation, int rank) {
    Worker& self = situation.workers[rank];
    const int window = mutation_.one_window ? 0 : self.call % 2;
    switch (self.at) {
      case At::kStage:
        if (!mutation_.waits_for_no_reader && !have_reached(situation, self.lent[window])) {
          findings.waits_for_readers = true;
          return;
        }
        self.window[window] = {self.call, false};
        self.at = At::kAnnounce;
        break;
      case At::kAnnounce: {
        Situation announced = situation;
        bool is_last = false;
        announce(announced, rank, [&] { is_last = true; });
        if (!is_last || mutation_.announces_before_the_result) {
          situation = announced;
        }
        self.at = is_last ? At::kRead : At::kLook;
        break;
      }
      case At::kRead:
        findings.reads_wrong_call |= situation.workers[self.to_read].window[window] != Window{self.call, false};
        if (++self.to_read == size_) {
          self.to_read = 0;
          self.at = At::kReduce;
        }
        break;
      case At::kReduce:
        self.window[window].is_result = true;
        self.at = mutation_.announces_before_the_result ? At::kLook : At::kAnnounceAsLast;
        break;
      case At::kAnnounceAsLast:
        announce(situation, rank, [] {});
        self.at = At::kLook;
        break;
      case At::kLook: {
        const ShmAgreement::State state =
            ask(situation, [&](ShmAgreement& agreement) { return agreement.look(self.call); });
        findings.does_not_agree |= state == ShmAgreement::State::kClosed || state == ShmAgreement::State::kPassed;
        if (state != ShmAgreement::State::kAll) {
          return;
        }
        self.at = At::kTake;
        break;
      }
      case At::kTake:
        findings.takes_wrong_result |=
            situation.workers[situation.last[self.call % 2]].window[window] != Window{self.call, true};
        self.at = At::kPublish;
        break;
      case At::kPublish:
        self.sequence = self.call;
        if (situation.last[self.call % 2] == rank) {
          self.lent[window] = self.call;
        }
        self.at = self.call == kCalls ? At::kDone : At::kStage;
        ++self.call;
        break;
      case At::kDone:
        return;
    }
    visit(situation);
  }

  bool have_reached(const Situation& situation, uint8_t sequence) const {
    return std::all_of(situation.workers, situation.workers + size_,
                       [&](const Worker& worker) { return worker.sequence >= sequence; });
  }

  void announce(Situation& situation, int rank, const std::function<void()>& as_last) {
    const uint8_t call = situation.workers[rank].call;
    const ShmAgreement::State state = ask(situation, [&](ShmAgreement& agreement) {
      return agreement
          .announce(call, kBit,
                    [&] {
                      as_last();
                      agreement.set_last(call, rank);
                    })
          .state;
    });
    findings.does_not_agree |= state == ShmAgreement::State::kClosed;
  }

  template <typename Question>
  ShmAgreement::State ask(Situation& situation, Question&& question) {
    transport::ArenaHeader header{};
    for (int i = 0; i < 2; ++i) {
      header.shm_agreement[i] = situation.words[i];
      header.shm_agreement_last[i] = situation.last[i];
    }
    ShmAgreement agreement(&header, size_);
    const ShmAgreement::State answer = question(agreement);
    for (int i = 0; i < 2; ++i) {
      situation.words[i] = header.shm_agreement[i];
      situation.last[i] = header.shm_agreement_last[i];
    }
    return answer;
  }

  const int size_;
  const Mutation mutation_;
  std::set<Situation> seen_;
  std::deque<Situation> open_;
};

TEST(StagedWindows, WorkerThatStagesNeverWaitsForReaders) {
  for (int size = 2; size <= kMost; ++size) {
    const Findings findings = Exploration(size, {}).findings;
    EXPECT_TRUE(findings.ends);
    EXPECT_FALSE(findings.waits_for_readers);
    EXPECT_FALSE(findings.reads_wrong_call);
    EXPECT_FALSE(findings.takes_wrong_result);
    EXPECT_FALSE(findings.does_not_agree);
    EXPECT_GT(findings.situations, 100U);
  }
}

TEST(StagedWindows, OneWindowWouldHaveToWait) {
  const Findings findings = Exploration(2, {.one_window = true}).findings;
  EXPECT_TRUE(findings.ends);
  EXPECT_TRUE(findings.waits_for_readers);
  EXPECT_FALSE(findings.reads_wrong_call);
  EXPECT_FALSE(findings.takes_wrong_result);
}

TEST(StagedWindows, ResultThatIsOverwrittenTooEarlyIsFound) {
  EXPECT_TRUE(Exploration(2, {.one_window = true, .waits_for_no_reader = true}).findings.takes_wrong_result);
}

TEST(StagedWindows, ResultThatIsNotThereYetIsFound) {
  EXPECT_TRUE(Exploration(2, {.announces_before_the_result = true}).findings.takes_wrong_result);
}

}  // namespace
}  // namespace farandole
