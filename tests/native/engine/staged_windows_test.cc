// Every interleaving of workers that make small calls one after another on the fast path: see engine/shm_agreement.h
// and collective/shm_sequence.h.
//
// The words are the engine's own code; what a worker does besides is a step here, of one read or write of shared memory
// each. All orders of these steps are tried. A worker stages its data in a window before it announces the call, and
// reads the windows of all when all have announced it.
#include <gtest/gtest.h>

#include <algorithm>
#include <compare>
#include <deque>
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
};

enum class At : uint8_t { kStage, kAnnounce, kLook, kRead, kPublish, kDone };

struct Worker {
  At at = At::kStage;
  uint8_t call = 1;
  uint8_t to_read = 0;     // the next rank whose window it reads
  uint8_t sequence = 0;    // the call whose data it has read
  uint8_t window[2] = {};  // the call whose data is there
  uint8_t lent[2] = {};    // the sequence that all must have reached before something else is put there
  auto operator<=>(const Worker&) const = default;
};

struct Situation {
  uint64_t words[2] = {};
  Worker workers[kMost];
  auto operator<=>(const Situation&) const = default;
};

struct Findings {
  size_t situations = 0;
  bool waits_for_readers = false;  // a worker must wait before it can stage
  bool reads_wrong_call = false;
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
        self.window[window] = self.call;
        self.at = At::kAnnounce;
        break;
      case At::kAnnounce:
        findings.does_not_agree |= ask(situation, [&](ShmAgreement& agreement) {
                                     return agreement.announce(self.call, kBit).state;
                                   }) == ShmAgreement::State::kClosed;
        self.at = At::kLook;
        break;
      case At::kLook: {
        const ShmAgreement::State state =
            ask(situation, [&](ShmAgreement& agreement) { return agreement.look(self.call); });
        findings.does_not_agree |= state == ShmAgreement::State::kClosed || state == ShmAgreement::State::kPassed;
        if (state != ShmAgreement::State::kAll) {
          return;
        }
        self.at = At::kRead;
        break;
      }
      case At::kRead:
        findings.reads_wrong_call |= situation.workers[self.to_read].window[window] != self.call;
        if (++self.to_read == size_) {
          self.to_read = 0;
          self.at = At::kPublish;
        }
        break;
      case At::kPublish:
        self.sequence = self.lent[window] = self.call;
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

  template <typename Question>
  ShmAgreement::State ask(Situation& situation, Question&& question) {
    transport::ArenaHeader header{};
    header.shm_agreement[0] = situation.words[0];
    header.shm_agreement[1] = situation.words[1];
    ShmAgreement agreement(&header, size_);
    const ShmAgreement::State answer = question(agreement);
    situation.words[0] = header.shm_agreement[0];
    situation.words[1] = header.shm_agreement[1];
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
    EXPECT_FALSE(findings.does_not_agree);
    EXPECT_GT(findings.situations, 100U);
  }
}

TEST(StagedWindows, OneWindowWouldHaveToWait) {
  const Findings findings = Exploration(2, {.one_window = true}).findings;
  EXPECT_TRUE(findings.ends);
  EXPECT_TRUE(findings.waits_for_readers);
  EXPECT_FALSE(findings.reads_wrong_call);
}

TEST(StagedWindows, DataThatIsOverwrittenTooEarlyIsFound) {
  EXPECT_TRUE(Exploration(2, {.one_window = true, .waits_for_no_reader = true}).findings.reads_wrong_call);
}

}  // namespace
}  // namespace farandole
