// The messages of an agreement round. Their bytes are described in docs/reference/wire.md.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/formation.h"
#include "base/bytes.h"
#include "collective/knobs.h"
#include "engine/rank_set.h"
#include "engine/request.h"

namespace farandole::engine {

// A set of the small numbers that stand for known requests.
class BitSet {
 public:
  void set(uint32_t bit);
  bool empty() const noexcept { return words_.empty(); }
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (size_t word = 0; word < words_.size(); ++word) {
      for (uint64_t rest = words_[word]; rest != 0; rest &= rest - 1) {
        visit(static_cast<uint32_t>(word * 64 + static_cast<size_t>(std::countr_zero(rest))));
      }
    }
  }
  const std::vector<uint64_t>& words() const noexcept { return words_; }
  static BitSet from_words(std::vector<uint64_t> words);

 private:
  std::vector<uint64_t> words_;
};

// The answer of a rank that others wait for.
struct StallAnswer {
  uint64_t query = 0;
  bool of_program = false;  // by the program, with the line of code that it is at; otherwise by the engine
  std::string text;
};

// From a rank to its parent (agreement_tree.h): the requests that have become ready since its last message.
struct Ready {
  struct Known {
    uint32_t group;
    BitSet bits;
  };
  struct New {
    uint32_t group;
    std::string name;
    Signature signature;
    bool recurs = false;  // the name will come again, so it gets a bit at once
  };
  // Its first request in device memory in a group: see backend/formation.h.
  struct Introduction {
    uint32_t group;
    base::Bytes bytes;
  };
  std::vector<Known> known;
  std::vector<New> fresh;
  std::vector<Introduction> introductions;
  std::vector<backend::Formation::Formed> formed;
  int64_t age_ns = 0;     // how long ago these were asked for when the message was sent; their mean
  bool leaving = false;   // wants the world to end
  bool finished = false;  // has done everything up to kLeft
  std::vector<StallAnswer> answers;

  void add_known(uint32_t group, uint32_t bit);
  bool empty() const noexcept {
    return known.empty() && fresh.empty() && introductions.empty() && formed.empty() && !leaving && !finished &&
           answers.empty();
  }
};

// The requests that have become ready on each of these ranks. A rank with children sends a list of these for its
// subtree.
struct Report {
  RankSet ranks;             // at least one
  int32_t last_rank = -1;    // which of them was ready last: as long ago as `ready` says, their mean
  int64_t first_age_ns = 0;  // how long ago the first one was ready for the first of these requests
  Ready ready;
};

inline constexpr uint32_t kNoBit = UINT32_MAX;

// From rank 0 to all ranks, from parent to children. All ranks get the same messages in the same order, except for
// queries. All others are numbered from 1; numbers that are missing were agreed on without rank 0 (see
// shm_agreement.h).
struct Decision {
  enum class Type : uint8_t {
    kInitialConfig = 1,  // the first message of a world: the settings that must be the same on all ranks
    kRun = 2,            // these requests of one group are ready everywhere
    kLeft = 3,           // a rank leaves in good order: the world ends here
    kGone = 4,           // every rank has done everything up to kLeft: no rank reads another one's memory any more
    kStallQuery = 5,     // others wait for these ranks: what are they doing? Only on the way to them
    kTune = 6,           // from here on, collectives run with these knobs
    kForm = 7,           // the members of this group form the backends that have to be formed
    kUseFormed = 8       // they are formed in this group, and run what is agreed on from here on; or they cannot be
  };
  struct Agreed {
    uint32_t bit = kNoBit;  // from now on this bit stands for the request
    std::string name;
    Signature signature;         // the first dimension of an allgather's or alltoall's shape is 0
    std::vector<int64_t> sizes;  // allgather: the first dimension on every member; add group: the new id; join: the
                                 // last rank
  };
  struct Refused {
    std::string name;
    std::string reason;
    std::vector<int32_t> asked;  // the ranks that asked for it: it fails on these
  };

  Type type = Type::kRun;
  uint32_t number = 0;  // not of queries
  // kInitialConfig
  uint64_t piece_bytes = 0;
  std::string algorithm;
  std::string backend;
  backend::GpuMode gpu = backend::GpuMode::kAuto;
  // kInitialConfig, kTune
  collective::Knobs knobs;
  // kInitialConfig: see AgreementTree
  uint32_t fanout = 0;
  // kRun, kForm, kUseFormed
  uint32_t group = 0;
  // kRun
  std::vector<int32_t> absent;  // these members have joined and never asked: they run what is agreed without data
  int64_t settling_ns = 0;      // how long ago the last rank was ready when this was sent; the mean over requests
  int32_t last_rank = -1;       // which rank that was, for the last of these requests
  BitSet known;
  std::vector<Agreed> agreed;
  std::vector<Refused> refused;
  // kForm
  base::Bytes key;
  // kUseFormed: why they cannot be formed there; empty: they are
  std::string obstacle;
  // kLeft
  int32_t left_rank = -1;
  // kStallQuery
  uint64_t query = 0;
  RankSet asked;
};

base::Bytes encode(const Ready& ready);
base::Bytes encode(const std::vector<Report>& reports);
base::Bytes encode(const Decision& decision);
// Throw Error(kInternal) when malformed.
Ready decode_ready(std::span<const std::byte> bytes);
std::vector<Report> decode_reports(std::span<const std::byte> bytes);
Decision decode_decision(std::span<const std::byte> bytes);

}  // namespace farandole::engine
