#include "engine/messages.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace farandole::engine {
namespace {

using base::Reader;
using base::Writer;

void put_signature(Writer& writer, const Signature& signature) {
  writer.put(signature.kind);
  writer.put(signature.dtype);
  writer.put_string(signature.opaque.name);
  writer.put(signature.opaque.bytes);
  for_each_option([&](const auto& row) { writer.put(signature.*row.field); });
  writer.put_vector(signature.shape);
}

// What a malformed message gives as an age must not overflow the sums of many ages: no request waits for eleven days.
int64_t get_age(Reader& reader) {
  constexpr int64_t kMostNs = 1'000'000'000'000'000;
  return std::clamp<int64_t>(reader.get<int64_t>(), 0, kMostNs);
}

Signature get_signature(Reader& reader) {
  Signature signature;
  signature.kind = reader.get<Kind>();
  signature.dtype = reader.get<reduce::Dtype>();
  signature.opaque.name = reader.get_string();
  signature.opaque.bytes = reader.get<uint32_t>();
  for_each_option([&](const auto& row) {
    auto& option = signature.*row.field;
    option = reader.get<std::decay_t<decltype(option)>>();
  });
  signature.shape = reader.get_vector<int64_t>();
  if (static_cast<uint8_t>(signature.kind) > kLastKind || !are_valid(signature) ||
      !reduce::dtype_from(static_cast<uint32_t>(signature.dtype)).has_value()) {
    throw base::Error(base::Code::kInternal, "malformed message: no such operation, option or data type");
  }
  return signature;
}

void put_knobs(Writer& writer, const collective::Knobs& knobs) {
  for (const collective::KnobName& knob : collective::kKnobNames) {
    writer.put(knobs.*knob.knob);
  }
}

collective::Knobs get_knobs(Reader& reader) {
  collective::Knobs knobs;
  for (const collective::KnobName& knob : collective::kKnobNames) {
    knobs.*knob.knob = reader.get<uint64_t>();
  }
  return knobs;
}

void require_end(const Reader& reader) {
  if (!reader.done()) {
    throw base::Error(base::Code::kInternal, "malformed message: it is longer than expected");
  }
}

}  // namespace

void BitSet::set(uint32_t bit) {
  if (bit / 64 >= words_.size()) {
    words_.resize(bit / 64 + 1);
  }
  words_[bit / 64] |= uint64_t{1} << (bit % 64);
}

BitSet BitSet::from_words(std::vector<uint64_t> words) {
  BitSet set;
  set.words_ = std::move(words);
  return set;
}

void Ready::add_known(uint32_t group, uint32_t bit) {
  auto of_group = std::ranges::find(known, group, &Known::group);
  if (of_group == known.end()) {
    of_group = known.insert(known.end(), {group, {}});
  }
  of_group->bits.set(bit);
}

base::Bytes encode(const Ready& ready) {
  Writer writer;
  writer.put(static_cast<uint8_t>(ready.leaving));
  writer.put(static_cast<uint8_t>(ready.finished));
  writer.put(ready.age_ns);
  writer.put(static_cast<uint32_t>(ready.known.size()));
  for (const Ready::Known& known : ready.known) {
    writer.put(known.group);
    writer.put_vector(known.bits.words());
  }
  writer.put(static_cast<uint32_t>(ready.fresh.size()));
  for (const Ready::New& fresh : ready.fresh) {
    writer.put(fresh.group);
    writer.put_string(fresh.name);
    put_signature(writer, fresh.signature);
    writer.put(static_cast<uint8_t>(fresh.recurs));
  }
  writer.put(static_cast<uint32_t>(ready.introductions.size()));
  for (const Ready::Introduction& introduction : ready.introductions) {
    writer.put(introduction.group);
    writer.put_vector(introduction.bytes);
  }
  writer.put(static_cast<uint32_t>(ready.formed.size()));
  for (const backend::Formation::Formed& formed : ready.formed) {
    writer.put(formed.group);
    writer.put_string(formed.error);
  }
  writer.put(static_cast<uint32_t>(ready.answers.size()));
  for (const StallAnswer& answer : ready.answers) {
    writer.put(answer.query);
    writer.put(static_cast<uint8_t>(answer.of_program));
    writer.put_string(answer.text);
  }
  return writer.take();
}

Ready decode_ready(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Ready ready;
  ready.leaving = reader.get<uint8_t>() != 0;
  ready.finished = reader.get<uint8_t>() != 0;
  ready.age_ns = get_age(reader);
  for (auto count = reader.get<uint32_t>(); count > 0; --count) {
    const auto group = reader.get<uint32_t>();
    ready.known.push_back({group, BitSet::from_words(reader.get_vector<uint64_t>())});
  }
  for (auto count = reader.get<uint32_t>(); count > 0; --count) {
    const auto group = reader.get<uint32_t>();
    std::string name = reader.get_string();
    Signature signature = get_signature(reader);
    ready.fresh.push_back({group, std::move(name), std::move(signature), reader.get<uint8_t>() != 0});
  }
  for (auto count = reader.get<uint32_t>(); count > 0; --count) {
    const auto group = reader.get<uint32_t>();
    ready.introductions.push_back({group, reader.get_vector<std::byte>()});
  }
  for (auto count = reader.get<uint32_t>(); count > 0; --count) {
    const auto group = reader.get<uint32_t>();
    ready.formed.push_back({group, reader.get_string()});
  }
  for (auto count = reader.get<uint32_t>(); count > 0; --count) {
    const auto query = reader.get<uint64_t>();
    const bool of_program = reader.get<uint8_t>() != 0;
    ready.answers.push_back({query, of_program, reader.get_string()});
  }
  require_end(reader);
  return ready;
}

base::Bytes encode(const std::vector<Report>& reports) {
  Writer writer;
  writer.put(static_cast<uint32_t>(reports.size()));
  for (const Report& report : reports) {
    writer.put_vector(report.ranks.pairs());
    writer.put(report.last_rank);
    writer.put(report.first_age_ns);
    writer.put_vector(encode(report.ready));
  }
  return writer.take();
}

std::vector<Report> decode_reports(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  std::vector<Report> reports;
  for (auto count = reader.get<uint32_t>(); count > 0; --count) {
    Report& report = reports.emplace_back();
    report.ranks = RankSet::from_pairs(reader.get_vector<int32_t>());
    report.last_rank = reader.get<int32_t>();
    report.first_age_ns = get_age(reader);
    report.ready = decode_ready(reader.get_vector<std::byte>());
    if (!report.ranks.contains(report.last_rank)) {
      throw base::Error(base::Code::kInternal, "malformed message: the last rank is not one of those that it is about");
    }
  }
  require_end(reader);
  return reports;
}

base::Bytes encode(const Decision& decision) {
  Writer writer;
  writer.put(decision.type);
  writer.put(decision.number);
  switch (decision.type) {
    case Decision::Type::kInitialConfig:
      writer.put(decision.piece_bytes);
      writer.put_string(decision.algorithm);
      writer.put_string(decision.backend);
      writer.put(decision.gpu);
      put_knobs(writer, decision.knobs);
      writer.put(decision.fanout);
      break;
    case Decision::Type::kRun:
      writer.put(decision.group);
      writer.put_vector(decision.absent);
      writer.put(decision.settling_ns);
      writer.put(decision.last_rank);
      writer.put_vector(decision.known.words());
      writer.put(static_cast<uint32_t>(decision.agreed.size()));
      for (const Decision::Agreed& agreed : decision.agreed) {
        writer.put(agreed.bit);
        writer.put_string(agreed.name);
        put_signature(writer, agreed.signature);
        writer.put_vector(agreed.sizes);
      }
      writer.put(static_cast<uint32_t>(decision.refused.size()));
      for (const Decision::Refused& refused : decision.refused) {
        writer.put_string(refused.name);
        writer.put_string(refused.reason);
        writer.put_vector(refused.asked);
      }
      break;
    case Decision::Type::kLeft:
      writer.put(decision.left_rank);
      break;
    case Decision::Type::kGone:
      break;
    case Decision::Type::kStallQuery:
      writer.put(decision.query);
      writer.put_vector(decision.asked.pairs());
      break;
    case Decision::Type::kTune:
      put_knobs(writer, decision.knobs);
      break;
    case Decision::Type::kForm:
      writer.put(decision.group);
      writer.put_vector(decision.key);
      break;
    case Decision::Type::kUseFormed:
      writer.put(decision.group);
      writer.put_string(decision.obstacle);
      break;
  }
  return writer.take();
}

Decision decode_decision(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Decision decision;
  decision.type = reader.get<Decision::Type>();
  decision.number = reader.get<uint32_t>();
  switch (decision.type) {
    case Decision::Type::kInitialConfig:
      decision.piece_bytes = reader.get<uint64_t>();
      decision.algorithm = reader.get_string();
      decision.backend = reader.get_string();
      decision.gpu = reader.get<backend::GpuMode>();
      decision.knobs = get_knobs(reader);
      decision.fanout = reader.get<uint32_t>();
      break;
    case Decision::Type::kRun:
      decision.group = reader.get<uint32_t>();
      decision.absent = reader.get_vector<int32_t>();
      decision.settling_ns = reader.get<int64_t>();
      decision.last_rank = reader.get<int32_t>();
      decision.known = BitSet::from_words(reader.get_vector<uint64_t>());
      for (auto count = reader.get<uint32_t>(); count > 0; --count) {
        Decision::Agreed agreed;
        agreed.bit = reader.get<uint32_t>();
        agreed.name = reader.get_string();
        agreed.signature = get_signature(reader);
        agreed.sizes = reader.get_vector<int64_t>();
        decision.agreed.push_back(std::move(agreed));
      }
      for (auto count = reader.get<uint32_t>(); count > 0; --count) {
        Decision::Refused refused;
        refused.name = reader.get_string();
        refused.reason = reader.get_string();
        refused.asked = reader.get_vector<int32_t>();
        decision.refused.push_back(std::move(refused));
      }
      break;
    case Decision::Type::kLeft:
      decision.left_rank = reader.get<int32_t>();
      break;
    case Decision::Type::kGone:
      break;
    case Decision::Type::kStallQuery:
      decision.query = reader.get<uint64_t>();
      decision.asked = RankSet::from_pairs(reader.get_vector<int32_t>());
      break;
    case Decision::Type::kTune:
      decision.knobs = get_knobs(reader);
      break;
    case Decision::Type::kForm:
      decision.group = reader.get<uint32_t>();
      decision.key = reader.get_vector<std::byte>();
      break;
    case Decision::Type::kUseFormed:
      decision.group = reader.get<uint32_t>();
      decision.obstacle = reader.get_string();
      break;
    default:
      throw base::Error(base::Code::kInternal, "malformed message: no such decision");
  }
  require_end(reader);
  return decision;
}

}  // namespace farandole::engine
