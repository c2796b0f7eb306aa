#include "engine/options.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <type_traits>

#include "base/error.h"

namespace farandole::engine {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw base::Error(base::Code::kInvalidArgument, why); }

// A number of the C ABI as a value of one option.
template <typename Value>
void assign(Value& option, double value, std::string_view name) {
  if constexpr (std::is_enum_v<Value>) {
    const Enumerated known = enumerated(Value{});
    if (!(value >= 0 && value <= known.last && value == std::floor(value))) {
      std::string valid;
      for (uint32_t number = 0; number <= known.last; ++number) {
        valid +=
            (number == 0 ? "" : ", ") + std::to_string(number) + " (" + format_value(static_cast<Value>(number)) + ")";
      }
      refuse(std::string("there is no ") + known.what + " with number " + format_value(value) + "; there are " + valid);
    }
    option = static_cast<Value>(static_cast<uint32_t>(value));
  } else if constexpr (std::is_integral_v<Value>) {
    using Limits = std::numeric_limits<Value>;
    if (!(value >= Limits::min() && value <= Limits::max() && value == std::floor(value))) {
      refuse("the option '" + std::string(name) + "' is a whole number, not " + format_value(value));
    }
    option = static_cast<Value>(value);
  } else {
    option = value;
  }
}

[[noreturn]] void refuse_option(Kind kind, std::string_view name) {
  std::string all;
  for_each_option([&](const auto& row) {
    if (is_of(row, kind)) {
      all += (all.empty() ? "" : ", ") + std::string(row.name);
    }
  });
  refuse(std::string(name_of(kind)) + " has no option '" + std::string(name) + "'; it has " +
         (all.empty() ? "none" : all));
}

}  // namespace

std::string format_value(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::string format_value(int32_t rank) { return std::to_string(rank); }
std::string format_value(ReduceOp op) { return name_of(op); }
std::string format_value(Compression compression) { return name_of(compression); }
std::string format_value(MemoryKind memory) { return backend::name_of(memory); }

void set_option(Options& options, Kind kind, std::string_view name, double value) {
  bool found = false;
  for_each_option([&](const auto& row) {
    if (!found && is_of(row, kind) && name == row.name) {
      assign(options.*row.field, value, name);
      found = true;
    }
  });
  if (!found) {
    refuse_option(kind, name);
  }
}

bool are_valid(const Options& options) noexcept {
  bool valid = true;
  for_each_option([&](const auto& row) {
    if constexpr (std::is_enum_v<std::decay_t<decltype(options.*row.field)>>) {
      const auto value = options.*row.field;
      valid = valid && static_cast<uint32_t>(value) <= enumerated(value).last;
    }
  });
  return valid;
}

}  // namespace farandole::engine
