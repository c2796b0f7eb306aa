// The options of a request besides its type and shape: one declaration for each.
//
// An option is a field of Options and its row in kOptionTable, both in this file. They define how callers of the C ABI
// pass it (by name), which kinds of request have it, how it travels, whether a known request is the same, which
// requests may share a bucket, and what the error says if ranks disagree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "backend/backend.h"
#include "engine/kind.h"

namespace farandole::engine {

// The numbers of these enumerations are part of the C ABI and of the wire format.

// An average is a sum whose divisor is the size of the group.
enum class ReduceOp : uint8_t { kAverage = 0, kSum = 1, kAdasum = 2, kMin = 3, kMax = 4, kProduct = 5 };
inline constexpr uint8_t kLastReduceOp = 5;
const char* name_of(ReduceOp op) noexcept;  // "Average"

// The form in which an allreduce travels. It must be the same on all ranks.
enum class Compression : uint8_t { kNone = 0, kInt8 = 1, kTopk = 2 };
inline constexpr uint8_t kLastCompression = 2;
const char* name_of(Compression compression) noexcept;  // "int8", as in the table of algorithms

using backend::MemoryKind;

struct Options {
  double prescale = 1.0;
  double postscale = 1.0;
  ReduceOp op = ReduceOp::kSum;
  Compression compression = Compression::kNone;
  double compression_ratio = 0;           // of kTopk: which part of the elements is sent
  int32_t peer = 0;                       // a rank in the world; the one that receives in a transfer
  int32_t root = 0;                       // a rank in the world; of a transfer, the one that sends
  MemoryKind memory = MemoryKind::kHost;  // where input and output lie

  bool operator==(const Options&) const = default;
};

// --- the table -----------------------------------------------------------------------------------------------------

// Values as they are shown to people.
std::string format_value(double value);
std::string format_value(int32_t rank);
std::string format_value(ReduceOp op);
std::string format_value(Compression compression);
std::string format_value(MemoryKind memory);

// The largest number of an enumeration, and what a larger one is not.
struct Enumerated {
  uint32_t last;
  const char* what;
};
constexpr Enumerated enumerated(ReduceOp) { return {kLastReduceOp, "reduction"}; }
constexpr Enumerated enumerated(Compression) { return {kLastCompression, "compression"}; }
constexpr Enumerated enumerated(MemoryKind) { return {backend::kLastMemoryKind, "kind of memory"}; }

template <typename Value>
struct OptionRow {
  const char* name;  // for callers of the C ABI, and in the declarations of farandole.worker.collectives
  Value Options::* field;
  Has of;            // kinds that have this have the option; with others it keeps its default: it makes no ranks differ
  const char* what;  // ranks may disagree on, "reduction operation"; kWithRowAbove: that row shows this option too
  const char* verb = "asked for";
  std::string (*shown)(const Options& options) = nullptr;  // equal texts mean equal options; the value, if not given
  bool begins_with_kind = false;                           // whether the kind's name comes before `what`
};
inline constexpr const char* kWithRowAbove = nullptr;

// The options, in the order in which they travel, and in which differences are reported.
inline constexpr std::tuple kOptionTable = {
    OptionRow{"prescale", &Options::prescale, kReduction, "prescale and/or postscale factors", "sent factors",
              [](const Options& o) { return "(" + format_value(o.prescale) + ", " + format_value(o.postscale) + ")"; }},
    OptionRow{"postscale", &Options::postscale, kReduction, kWithRowAbove},
    OptionRow{"op", &Options::op, kReduction, "reduction operation"},
    OptionRow{"compression", &Options::compression, kCompression, "compression", "asked for",
              [](const Options& o) {
                const std::string ratio = "(" + format_value(o.compression_ratio) + ")";
                return format_value(o.compression) + (o.compression == Compression::kTopk ? ratio : "");
              }},
    OptionRow{"compression_ratio", &Options::compression_ratio, kCompression, kWithRowAbove},
    OptionRow{
        "peer", &Options::peer, kPeer, "transfers", "asked for one",
        [](const Options& o) { return "from rank " + format_value(o.root) + " to rank " + format_value(o.peer); }},
    OptionRow{"root", &Options::root, kRoot, "root ranks", "specified root rank", nullptr, true},
    OptionRow{"memory", &Options::memory, kTensor, "CPU/GPU device selection", "sent a tensor in",
              [](const Options& o) { return format_value(o.memory) + " memory"; }},
};
inline constexpr size_t kOptions = std::tuple_size_v<decltype(kOptionTable)>;

// --- what follows from it --------------------------------------------------------------------------------------------

// Calls visit(row) for every row of the table, in order.
template <typename Visit>
constexpr void for_each_option(Visit&& visit) {
  std::apply([&](const auto&... row) { (visit(row), ...); }, kOptionTable);
}

template <typename Row>
bool is_of(const Row& row, Kind kind) {
  return (row.of & row_of(kind).has) != 0;
}

// Sets an option by its name. Throws Error(kInvalidArgument) when this kind of request has no such option, or when that
// is not a value of it.
void set_option(Options& options, Kind kind, std::string_view name, double value);

// The options out of names and values (farandole_option); what is not given has its default. Throws as set_option does.
template <typename Given>
Options options_from(Kind kind, const Given& given) {
  Options options;
  for (const auto& each : given) {
    set_option(options, kind, each.name, each.value);
  }
  if (options.compression != Compression::kTopk) {
    options.compression_ratio = 0;  // it means nothing then, so ranks cannot differ in it
  }
  return options;
}

// Returns whether every enumeration has a valid value; checks options that came over the wire.
bool are_valid(const Options& options) noexcept;

}  // namespace farandole::engine
