#include "capi/settings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "collective/algorithm_table.h"
#include "transport/arena.h"

namespace farandole::capi {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw base::Error(base::Code::kInvalidArgument, why); }

// The text of one setting, as the type that its row asks for.
class Value {
 public:
  Value(std::string name, std::string text) : name_(std::move(name)), text_(std::move(text)) {}

  const std::string& text() const { return text_; }
  uint64_t bytes() const { return number<uint64_t>("a number of bytes"); }
  bool on() const { return number<uint64_t>("0 or 1") != 0; }
  double seconds() const {
    const auto value = number<double>("a number of seconds");
    if (!std::isfinite(value)) {
      refuse_for("a number of seconds");
    }
    return value;
  }
  int count() const {
    const auto value = number<uint64_t>("a number that is not negative");
    return static_cast<int>(std::min<uint64_t>(value, std::numeric_limits<int>::max()));
  }
  [[noreturn]] void refuse_for(const std::string& expected) const {
    refuse("the setting " + name_ + " is '" + text_ + "', but should be " + expected);
  }

 private:
  template <typename Number>
  Number number(const char* expected) const {
    Number value{};
    const char* const last = text_.data() + text_.size();
    if (const auto [end, error] = std::from_chars(text_.data(), last, value); error != std::errc() || end != last) {
      refuse_for(expected);
    }
    return value;
  }

  std::string name_;
  std::string text_;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t from = 0;
  while (from <= text.size()) {
    const size_t to = std::min(text.find(separator, from), text.size());
    if (to > from) {
      parts.push_back(text.substr(from, to - from));
    }
    from = to + 1;
  }
  return parts;
}

void set_transport(Settings& settings, const Value& value) {
  if (value.text() != "auto" && value.text() != "shm" && value.text() != "tcp") {
    refuse("there is no transport '" + value.text() + "': use auto, shm or tcp");
  }
  settings.endpoint.shared_memory = value.text() != "tcp";
  settings.needs_shared_memory = value.text() == "shm";
}

void set_algorithm(Settings& settings, const Value& value) {
  settings.engine.algorithm = value.text() == "auto" ? "" : value.text();
  const auto table = collective::algorithms();
  if (!settings.engine.algorithm.empty() &&
      std::ranges::none_of(table, [&](const auto& row) { return value.text() == row.name; })) {
    refuse("there is no algorithm '" + value.text() + "'; `auto` picks the best one");
  }
}

void set_backend(Settings& settings, const Value& value) {
  settings.engine.backends = backend::rows_for(value.text());
  settings.engine.backend = value.text();
}

void set_gpu(Settings& settings, const Value& value) {
  constexpr std::array kModes = {"auto", "nccl", "staged"};  // in the order of backend::GpuMode
  const auto mode = std::ranges::find(kModes, value.text());
  if (mode == kModes.end()) {
    refuse("there is no way '" + value.text() + "' for tensors of GPUs: use auto, nccl or staged");
  }
  settings.engine.gpu = static_cast<backend::GpuMode>(mode - kModes.begin());
}

void set_arena_bytes(Settings& settings, const Value& value) {
  if (value.bytes() != 0) {
    settings.endpoint.arena_bytes = value.bytes();
  }
}

void set_staging_bytes(Settings& settings, const Value& value) {
  // Each piece begins at a page boundary.
  constexpr uint64_t kPage = 4096;
  if (value.bytes() != 0) {
    settings.engine.piece_bytes = std::max(kPage, value.bytes() / transport::kWindows / kPage * kPage);
  }
}

void set_spin_seconds(Settings& settings, const Value& value) {
  if (value.seconds() != 0) {
    settings.engine.spin_ns = static_cast<int64_t>(std::max(0.0, value.seconds()) * 1e9);
  }
}

void set_log_level(Settings& settings, const Value& value) {
  constexpr int kOff = static_cast<int>(base::Level::kOff);
  if (value.count() != 0) {
    settings.log_level = static_cast<base::Level>(std::min(value.count() - 1, kOff));
  }
}

struct Row {
  std::string_view name;
  void (*set)(Settings& settings, const Value& value);
};

// One row for each setting that the engine takes. Names, meanings and defaults are those of
// src/farandole/base/settings/table.py; a test holds both tables together. The names of all knobs are settings as well.
constexpr std::array kRows = {
    Row{"listen", [](Settings& s, const Value& v) { s.endpoint.listen_addresses = split(v.text(), ','); }},
    Row{"transport", set_transport},
    Row{"host_key", [](Settings& s, const Value& v) { s.endpoint.host_key = v.text(); }},
    Row{"arena_bytes", set_arena_bytes},
    Row{"staging_bytes", set_staging_bytes},
    Row{"failure_deadline", [](Settings& s, const Value& v) { s.endpoint.failure_deadline_seconds = v.seconds(); }},
    Row{"spin_seconds", set_spin_seconds},
    Row{"algorithm", set_algorithm},
    Row{"backend", set_backend},
    Row{"mpi_library", [](Settings& s, const Value& v) { s.start.library = v.text(); }},
    Row{"gpu", set_gpu},
    Row{"nccl_library", [](Settings& s, const Value& v) { s.engine.nccl_library = v.text(); }},
    Row{"elastic", [](Settings& s, const Value& v) { s.engine.elastic = v.on(); }},
    Row{"start_timeout", [](Settings& s, const Value& v) { s.start.patience_seconds = v.seconds(); }},
    Row{"agreement_fanout", [](Settings& s, const Value& v) { s.engine.agreement_fanout = v.count(); }},
    Row{"autotune", [](Settings& s, const Value& v) { s.engine.autotune = v.on(); }},
    Row{"autotune_warmup_samples", [](Settings& s, const Value& v) { s.engine.tuner.warmup_samples = v.count(); }},
    Row{"autotune_steps_per_sample", [](Settings& s, const Value& v) { s.engine.tuner.steps_per_sample = v.count(); }},
    Row{"autotune_max_samples", [](Settings& s, const Value& v) { s.engine.tuner.max_samples = v.count(); }},
    Row{"stall_warning_seconds", [](Settings& s, const Value& v) { s.engine.stall_warning_seconds = v.seconds(); }},
    Row{"stall_shutdown_seconds", [](Settings& s, const Value& v) { s.engine.stall_shutdown_seconds = v.seconds(); }},
    Row{"log_level", set_log_level},
};

void set_knob(collective::Knobs& knobs, const std::string& name, const Value& value) {
  const auto knob = std::ranges::find_if(collective::kKnobNames, [&](const auto& known) { return known.name == name; });
  if (knob == collective::kKnobNames.end()) {
    refuse("there is no setting '" + name + "'");
  }
  knobs.*knob->knob = value.bytes();
}

void set(Settings& settings, const farandole_setting& given) {
  if (given.name == nullptr || given.value == nullptr) {
    refuse("a setting has a name and a value");
  }
  const std::string name = given.name;
  const Value value(name, given.value);
  if (const auto row = std::ranges::find(kRows, name, &Row::name); row != kRows.end()) {
    return row->set(settings, value);
  }
  set_knob(settings.engine.knobs, name, value);
  settings.engine.fixed_knobs.push_back(name);
}

}  // namespace

Settings read_settings(std::span<const farandole_setting> given) {
  Settings settings;
  for (const farandole_setting& each : given) {
    set(settings, each);
  }
  return settings;
}

void read_knobs(const std::string& text, collective::Knobs& knobs) {
  for (const std::string& part : split(text, ',')) {
    const size_t equals = std::min(part.find('='), part.size());
    const std::string name = part.substr(0, equals);
    set_knob(knobs, name, Value(name, part.substr(std::min(equals + 1, part.size()))));
  }
}

std::string setting_names() {
  std::string json;
  const auto add = [&](std::string_view name) { json += (json.empty() ? "[\"" : ", \"") + std::string(name) + '"'; };
  for (const Row& row : kRows) {
    add(row.name);
  }
  for (const collective::KnobName& knob : collective::kKnobNames) {
    add(knob.name);
  }
  return json + "]";
}

}  // namespace farandole::capi
