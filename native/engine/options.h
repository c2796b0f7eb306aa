// What a request may ask for besides its type and shape: one declaration for each option.
//
// An option is a field of Options, its line in for_each(), its line in options_from(), and, if ranks can disagree on
// it, its row in options.cc. What follows from these: how it travels, whether a known request is the same, which
// requests may share a bucket, how it comes through the C ABI, and what is said when ranks disagree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "backend/backend.h"
#include "base/error.h"

namespace farandole::engine {

// The numbers are part of the C ABI and of the wire format, as are those of the next enumerations.
enum class Kind : uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kBarrier = 3,
  kAddGroup = 4,     // shape holds the ranks
  kRemoveGroup = 5,  // shape[0] is the group's id
  kAlltoall = 6,
  kReducescatter = 7,
  kJoin = 8,      // no shape; only in the world
  kTransfer = 9,  // from root to peer, which are part of its name; no other rank takes part
};
inline constexpr uint8_t kLastKind = 9;
inline constexpr size_t kKinds = kLastKind + 1;
const char* name_of(Kind kind) noexcept;  // "allreduce"

// An average is a sum whose divisor is the size of the group.
enum class ReduceOp : uint8_t { kAverage = 0, kSum = 1, kAdasum = 2, kMin = 3, kMax = 4, kProduct = 5 };
inline constexpr uint8_t kLastReduceOp = 5;
const char* name_of(ReduceOp op) noexcept;  // "Average"

// How an allreduce travels. It must be the same on all ranks.
enum class Compression : uint8_t { kNone = 0, kInt8 = 1, kTopk = 2 };
inline constexpr uint8_t kLastCompression = 2;
const char* name_of(Compression compression) noexcept;  // "int8", as in the table of algorithms

using backend::MemoryKind;

struct Options {
  ReduceOp op = ReduceOp::kSum;  // allreduce and reducescatter
  int32_t root = 0;              // a rank in the world; broadcast, and the one that sends in a transfer
  int32_t peer = 0;              // a rank in the world; the one that receives in a transfer
  double prescale = 1.0;
  double postscale = 1.0;
  Compression compression = Compression::kNone;  // allreduce
  double compression_ratio = 0;                  // of kTopk: which part of the elements is sent
  MemoryKind memory = MemoryKind::kHost;         // where input and output lie

  bool operator==(const Options&) const = default;

  // Calls visit(field) for every option, in the order in which they travel.
  template <typename Self, typename Visit>
  static void for_each(Self& self, Visit&& visit) {
    visit(self.op);
    visit(self.root);
    visit(self.peer);
    visit(self.prescale);
    visit(self.postscale);
    visit(self.compression);
    visit(self.compression_ratio);
    visit(self.memory);
  }
};
inline constexpr size_t kOptions = 8;  // that for_each() visits

// What a request of this kind needs of a backend, but for its bytes; nothing when agreement is all it takes.
std::optional<backend::Need> need_of(Kind kind, const Options& options);

// A number of the C ABI as one of an enumeration. Throws Error(kInvalidArgument) when it is none.
template <typename Enumeration>
Enumeration enumerated(uint32_t number, uint32_t last, const char* what) {
  if (number > last) {
    throw base::Error(base::Code::kInvalidArgument,
                      std::string("there is no ") + what + " with number " + std::to_string(number));
  }
  return static_cast<Enumeration>(number);
}

// The options that a kind uses, out of a struct with fields of the same names (farandole_request). The others stay at
// their defaults, so that they never make two ranks differ.
template <typename Request>
Options options_from(Kind kind, const Request& request) {
  Options options;
  if (kind == Kind::kAllreduce || kind == Kind::kReducescatter) {
    options.op = enumerated<ReduceOp>(request.op, kLastReduceOp, "reduction");
    options.prescale = request.prescale;
    options.postscale = request.postscale;
  }
  if (kind == Kind::kAllreduce) {
    options.compression = enumerated<Compression>(request.compression, kLastCompression, "compression");
    options.compression_ratio = options.compression == Compression::kTopk ? request.compression_ratio : 0;
  }
  if (kind == Kind::kBroadcast || kind == Kind::kTransfer) {
    options.root = request.root;
  }
  if (kind == Kind::kTransfer) {
    options.peer = request.peer;
  }
  if (need_of(kind, options)) {
    options.memory = enumerated<MemoryKind>(request.memory, backend::kLastMemoryKind, "kind of memory");
  }
  return options;
}

// Whether every enumeration has a value that there is; what comes over the wire is checked by it.
bool are_valid(const Options& options) noexcept;

// What ranks may disagree on: how it is called in the error, and how it is shown.
struct OptionRow {
  const char* what;                              // "reduction operation"
  const char* verb;                              // "asked for"
  bool (*is_of)(Kind kind);                      // which kinds have it
  std::string (*shown)(const Options& options);  // equal texts mean equal options
};
// In the order in which differences are reported.
std::span<const OptionRow> option_rows() noexcept;

}  // namespace farandole::engine
