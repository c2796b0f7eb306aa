#include "engine/options.h"

#include <array>
#include <cstdio>

namespace farandole::engine {
namespace {

std::string format_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::string format_compression(const Options& options) {
  const std::string name = name_of(options.compression);
  return options.compression == Compression::kTopk ? name + "(" + format_number(options.compression_ratio) + ")" : name;
}

constexpr std::array<OptionRow, 6> kRows = {{
    {"prescale and/or postscale factors", "sent factors", [](Kind) { return true; },
     [](const Options& o) { return "(" + format_number(o.prescale) + ", " + format_number(o.postscale) + ")"; }},
    {"reduction operation", "asked for",
     [](Kind kind) { return kind == Kind::kAllreduce || kind == Kind::kReducescatter; },
     [](const Options& o) { return std::string(name_of(o.op)); }},
    {"compression", "asked for", [](Kind kind) { return kind == Kind::kAllreduce; }, format_compression},
    {"broadcast root ranks", "specified root rank", [](Kind kind) { return kind == Kind::kBroadcast; },
     [](const Options& o) { return std::to_string(o.root); }},
    {"transfers", "asked for one", [](Kind kind) { return kind == Kind::kTransfer; },
     [](const Options& o) { return "from rank " + std::to_string(o.root) + " to rank " + std::to_string(o.peer); }},
    {"CPU/GPU device selection", "sent a tensor in", [](Kind) { return true; },
     [](const Options& o) { return backend::name_of(o.memory) + std::string(" memory"); }},
}};

}  // namespace

std::span<const OptionRow> option_rows() noexcept { return kRows; }

bool are_valid(const Options& options) noexcept {
  return static_cast<uint32_t>(options.op) <= kLastReduceOp &&
         static_cast<uint32_t>(options.compression) <= kLastCompression &&
         static_cast<uint32_t>(options.memory) <= backend::kLastMemoryKind;
}

std::optional<backend::Need> need_of(Kind kind, const Options& options) {
  using backend::Operation;
  backend::Need need;
  need.memory = options.memory;
  switch (kind) {
    case Kind::kAllreduce:
      if (options.compression != Compression::kNone) {
        need.operation = Operation::kCompressedAllreduce;
        need.compression = name_of(options.compression);
      } else {
        need.operation = options.op == ReduceOp::kAdasum ? Operation::kAdasum : Operation::kAllreduce;
      }
      return need;
    case Kind::kAllgather:
      need.operation = Operation::kAllgather;
      return need;
    case Kind::kBroadcast:
      need.operation = Operation::kBroadcast;
      return need;
    case Kind::kAlltoall:
      need.operation = Operation::kAlltoall;
      return need;
    case Kind::kReducescatter:
      need.operation = Operation::kReducescatter;
      return need;
    case Kind::kTransfer:
      need.operation = Operation::kTransfer;
      return need;
    case Kind::kBarrier:
    case Kind::kAddGroup:
    case Kind::kRemoveGroup:
    case Kind::kJoin:
      break;
  }
  return std::nullopt;
}

}  // namespace farandole::engine
