// The part of the C ABI that reports: available choices, tuning, statistics, events, stall queries.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "capi/boundary.h"
#include "capi/settings.h"
#include "collective/algorithm_table.h"

using farandole::base::Deadline;
using farandole::capi::answered;
using farandole::capi::guarded;
using farandole::capi::refuse;
using farandole::capi::text_or;
using farandole::engine::Kind;
using farandole::engine::ReduceOp;

namespace {

std::string json_of(const farandole::collective::Knobs& knobs) {
  std::string json;
  for (const farandole::collective::KnobName& knob : farandole::collective::kKnobNames) {
    json += (json.empty() ? "{\"" : ", \"") + std::string(knob.name) + "\": " + std::to_string(knobs.*knob.knob);
  }
  return json + "}";
}

std::string json_of(const farandole::collective::Choice& choice) {
  return R"({"algorithm": ")" + std::string(choice.algorithm->name) + R"(", "reason": ")" + choice.reason + "\"}";
}

std::string json_of(const farandole::engine::TuningReport& report) {
  const auto word = [](bool value) { return value ? "true" : "false"; };
  std::string json = std::string(R"({"on": )") + word(report.on) + R"(, "done": )" + word(report.done) +
                     R"(, "found": )" + word(report.found) + R"(, "gain": )" + std::to_string(report.gain) +
                     R"(, "summary": ")" + report.summary + R"(", "knobs": )" + json_of(report.knobs) +
                     R"(, "samples": [)";
  for (size_t i = 0; i < report.samples.size(); ++i) {
    const farandole::engine::Tuner::Sample& sample = report.samples[i];
    json += std::string(i == 0 ? "" : ", ") + R"({"phase": ")" + sample.phase + R"(", "why": ")" + sample.why +
            R"(", "bytes_per_second": )" + std::to_string(sample.bytes_per_second) + R"(, "knobs": )" +
            json_of(sample.knobs) + "}";
  }
  return json + "]}";
}

std::string algorithms_as_json() {
  std::string json = "[";
  for (const auto& row : farandole::collective::algorithms()) {
    json += std::string(json.size() > 1 ? ", " : "") + R"({"name": ")" + row.name + R"(", "collective": ")" +
            row.collective + R"(", "description": ")" + row.description + R"("})";
  }
  return json + "]";
}

std::string backends_as_json() {
  using farandole::backend::MemoryKind;
  std::string json = "[";
  for (const farandole::backend::Row* const row : farandole::backend::rows()) {
    std::string memory;
    for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kDevice}) {
      if ((row->capabilities.memory & farandole::backend::bit_of(kind)) != 0) {
        memory += (memory.empty() ? "\"" : ", \"") + std::string(farandole::backend::name_of(kind)) + "\"";
      }
    }
    json += std::string(json.size() > 1 ? ", " : "") + R"({"name": ")" + row->name + R"(", "description": ")" +
            row->description + R"(", "memory": [)" + memory + R"(], "absent": ")" +
            (row->absent == nullptr ? "" : row->absent) + R"("})";
  }
  return json + "]";
}

farandole_kind_row row_of(const farandole::engine::KindRow& row) {
  using farandole::engine::Rows;
  const uint32_t alike = row.shares ? FARANDOLE_ROWS_SHARED : FARANDOLE_ROWS_SAME;
  const uint32_t differing = row.rows == Rows::kAgreed ? FARANDOLE_ROWS_GATHERED : FARANDOLE_ROWS_EXCHANGED;
  return {row.name, row.has, row.rows == Rows::kEqual ? alike : differing};
}

std::string options_as_json() {
  std::string json = "[";
  farandole::engine::for_each_option([&](const auto& row) {
    std::string kinds;
    for (uint32_t number = 0; number < farandole::engine::kKinds; ++number) {
      if (farandole::engine::is_of(row, static_cast<Kind>(number))) {
        kinds += (kinds.empty() ? "" : ", ") + std::to_string(number);
      }
    }
    json += std::string(json.size() > 1 ? ", " : "") + R"({"name": ")" + row.name + R"(", "kinds": [)" + kinds + "]}";
  });
  return json + "]";
}

}  // namespace

extern "C" {

const farandole_kind_row* farandole_kind_row_of(uint32_t kind) {
  static const auto kRows = [] {
    std::array<farandole_kind_row, farandole::engine::kKinds + 1> rows{};
    rows.back().name = "";
    std::ranges::transform(farandole::engine::kKindTable, rows.begin(), [](const auto* row) { return row_of(*row); });
    return rows;
  }();
  return &kRows[std::min<size_t>(kind, farandole::engine::kKinds)];
}

const char* farandole_options(void) {
  static const std::string kJson = options_as_json();
  return kJson.c_str();
}

const char* farandole_algorithms(void) {
  static const std::string kJson = algorithms_as_json();
  return kJson.c_str();
}

const char* farandole_backends(void) {
  static const std::string kJson = backends_as_json();
  return kJson.c_str();
}

const char* farandole_probe_backend(const char* name, const char* library) {
  return answered([&] {
    for (const farandole::backend::Row* const row : farandole::backend::rows()) {
      if (std::string_view(row->name) != name) {
        continue;
      }
      if (row->absent != nullptr) {
        throw farandole::base::Error(farandole::base::Code::kUnavailable, row->absent);
      }
      return row->probe == nullptr ? std::string() : row->probe(library);
    }
    throw farandole::base::Error(farandole::base::Code::kInvalidArgument,
                                 "there is no backend '" + std::string(name) + "'");
  });
}

const char* farandole_choose_for(uint32_t kind, uint32_t op, uint64_t bytes, int32_t members, int32_t hosts,
                                 int32_t fewest) {
  return answered([&] {
    if (kind > farandole::engine::kLastKind) {
      refuse("there is no operation with number " + std::to_string(kind));
    }
    return json_of(farandole::engine::choose_for(static_cast<Kind>(kind), static_cast<ReduceOp>(op),
                                                 {members, hosts, fewest}, bytes, {}, ""));
  });
}

const char* farandole_tuning(farandole_engine* engine) {
  return answered([&] { return json_of(engine->engine.tuning()); });
}

const char* farandole_choose(farandole_engine* engine, uint32_t kind, uint32_t op, uint32_t group, uint64_t bytes) {
  return answered([&] {
    if (kind > farandole::engine::kLastKind) {
      refuse("there is no operation with number " + std::to_string(kind));
    }
    return json_of(engine->engine.choose(static_cast<Kind>(kind), static_cast<ReduceOp>(op), group, bytes));
  });
}

int farandole_keep_knobs(farandole_engine* engine, const char* knobs) {
  return guarded([&] {
    farandole::collective::Knobs kept = engine->engine.settings().knobs;
    farandole::capi::read_knobs(text_or(knobs, ""), kept);
    engine->engine.keep(kept);
  });
}

int farandole_get_stats(farandole_engine* engine, farandole_stats* stats) {
  const farandole::engine::Stats now = engine->engine.stats();
  stats->rounds = now.rounds;
  stats->sleeps = now.sleeps;
  static_assert(FARANDOLE_KINDS == farandole::engine::kKinds);
  for (size_t kind = 0; kind < now.kinds.size(); ++kind) {
    const farandole::engine::KindStats& from = now.kinds[kind];
    stats->kinds[kind] = {from.requests,       from.buckets,   from.bytes,     from.waiting_ns,
                          from.negotiating_ns, from.moving_ns, from.copied.in, from.copied.out};
  }
  return FARANDOLE_OK;
}

size_t farandole_read_events(farandole_engine* engine, uint64_t* cursor, farandole_event* events, size_t capacity,
                             uint64_t* lost) {
  std::vector<farandole::engine::Event> read(capacity);
  const size_t count = engine->engine.events().read(*cursor, read, *lost);
  for (size_t i = 0; i < count; ++i) {
    const farandole::engine::Event& from = read[i];
    events[i] = {from.time_ns,
                 from.bytes,
                 static_cast<uint32_t>(from.phase),
                 static_cast<uint32_t>(from.kind),
                 from.group,
                 from.algorithm,
                 from.bucket,
                 from.name,
                 from.rank};
  }
  return count;
}

const char* farandole_event_name(farandole_engine* engine, uint32_t name) {
  return engine->engine.events().name_of(name).c_str();
}

const char* farandole_event_signature(farandole_engine* engine, uint32_t name) {
  thread_local std::string t_signature;
  t_signature = engine->engine.events().signature_of(name);
  return t_signature.c_str();
}

int farandole_wait_stall_query(farandole_engine* engine, double timeout_seconds, uint64_t* query) {
  return engine->engine.wait_stall_query(Deadline::after_seconds(timeout_seconds), *query);
}

int farandole_answer_stall_query(farandole_engine* engine, uint64_t query, const char* text) {
  return guarded([&] { engine->engine.answer_stall_query(query, text_or(text, "")); });
}

}  // extern "C"
