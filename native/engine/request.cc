#include "engine/request.h"

#include <algorithm>
#include <functional>
#include <map>

#include "engine/kinds/reduction.h"

namespace farandole::engine {

const char* name_of(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kAverage:
      return "Average";
    case ReduceOp::kSum:
      return "Sum";
    case ReduceOp::kAdasum:
      return "Adasum";
    case ReduceOp::kMin:
      return "Min";
    case ReduceOp::kMax:
      return "Max";
    case ReduceOp::kProduct:
      return "Product";
  }
  return "?";
}

const char* name_of(Compression compression) noexcept {
  switch (compression) {
    case Compression::kNone:
      return "none";
    case Compression::kInt8:
      return "int8";
    case Compression::kTopk:
      return "topk";
  }
  return "?";
}

bool takes_part(const Signature& signature, int rank) noexcept {
  return signature.kind != Kind::kTransfer || signature.root == rank || signature.peer == rank;
}

std::optional<backend::Need> need_of(Kind kind, const Options& options) {
  const KindRow& row = row_of(kind);
  if (row.operation == nullptr) {
    return std::nullopt;
  }
  backend::Need need;
  need.operation = row.operation(options);
  need.memory = options.memory;
  if (options.compression != Compression::kNone) {
    need.compression = name_of(options.compression);
  }
  return need;
}

std::optional<backend::Need> need_of(const Signature& signature) {
  std::optional<backend::Need> need = need_of(signature.kind, signature.options());
  if (need) {
    need->bytes = signature.bytes();
    need->dtype = signature.dtype;
    need->op = kinds::reduction_of(signature.op);
    need->averages = signature.op == ReduceOp::kAverage;
    need->has_factors = signature.prescale != 1 || signature.postscale != 1;
  }
  return need;
}

int64_t Signature::elements() const noexcept {
  int64_t count = 1;
  for (const int64_t dimension : shape) {
    count *= dimension;
  }
  return count;
}

std::string Signature::type_name() const { return opaque.name.empty() ? reduce::name_of(dtype) : opaque.name; }

size_t Signature::element_bytes() const noexcept { return opaque.name.empty() ? reduce::size_of(dtype) : opaque.bytes; }

size_t Signature::bytes() const noexcept { return static_cast<size_t>(elements()) * element_bytes(); }

int64_t Signature::row_elements() const noexcept {
  int64_t count = 1;
  for (size_t i = 1; i < shape.size(); ++i) {
    count *= shape[i];
  }
  return count;
}

size_t Signature::row_bytes() const noexcept { return static_cast<size_t>(row_elements()) * element_bytes(); }

std::string format_shape(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::string format_ranks(std::span<const int> ranks) {
  constexpr size_t kMost = 8;
  if (ranks.size() == 1) {
    return "rank " + std::to_string(ranks[0]);
  }
  std::string text = "ranks " + std::to_string(ranks[0]);
  for (size_t i = 1; i < ranks.size(); ++i) {
    if (i == kMost && ranks.size() > kMost + 1) {
      return text + " and " + std::to_string(ranks.size() - i) + " more";
    }
    text += (i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

namespace {

// Rows that are not agreed on are known to their own rank only.
std::string format_own_rows(const Signature& signature) {
  std::string text = format_shape(signature.shape);
  return row_of(signature.kind).rows == Rows::kOwn ? "[*" + text.substr(text.find_first_of(",]")) : text;
}

struct Property {
  std::string what;                                             // "data types"
  std::string verb;                                             // "sent"
  std::function<std::string(const Signature&)> of;              // as it is shown
  std::function<std::string(const Signature&)> same = nullptr;  // what must be equal, if not all that is shown
};

// In the order in which differences are reported: a dtype that differs matters more than a shape.
std::vector<Property> properties_of(Kind kind) {
  const std::string op = name_of(kind);
  std::vector<Property> all = {
      {"data types", "sent", [](const Signature& s) { return s.type_name(); }},
      {"operations", "did", [](const Signature& s) { return std::string(name_of(s.kind)); }},
  };
  if (has_own_rows(kind)) {
    all.push_back({op + " tensor shapes", "sent a tensor of", [](const Signature& s) {
                     return std::to_string(s.shape.size()) + (s.shape.size() == 1 ? " dimension" : " dimensions");
                   }});
    all.push_back({op + " tensor shapes (only the first dimension may differ)", "sent a tensor of",
                   [](const Signature& s) { return "shape " + format_own_rows(s); },
                   [](const Signature& s) { return format_shape(std::span(s.shape).subspan(1)); }});
  } else if (kind == Kind::kAddGroup || kind == Kind::kRemoveGroup) {
    all.push_back({"process sets", "gave", [](const Signature& s) { return format_shape(s.shape); }});
  } else {
    all.push_back(
        {op + " tensor shapes", "sent a tensor of shape", [](const Signature& s) { return format_shape(s.shape); }});
  }
  for_each_option([&](const auto& row) {
    if (is_of(row, kind) && row.what != kWithRowAbove) {
      all.push_back({(row.begins_with_kind ? op + " " : "") + row.what, row.verb, [&row](const Signature& s) {
                       return row.shown != nullptr ? row.shown(s) : format_value(s.*row.field);
                     }});
    }
  });
  return all;
}

std::string describe(const Property& property, const std::string& name, std::span<const int> ranks,
                     std::span<const Signature> sent) {
  std::map<std::string, std::vector<int>> ranks_by_value;
  std::vector<std::string> in_order;
  for (size_t i = 0; i < sent.size(); ++i) {
    const std::string value = property.of(sent[i]);
    if (!ranks_by_value.contains(value)) {
      in_order.push_back(value);
    }
    ranks_by_value[value].push_back(ranks[i]);
  }
  std::string text = "Mismatched " + property.what + " for '" + name + "': ";
  for (size_t i = 0; i < in_order.size(); ++i) {
    text += (i == 0   ? ""
             : i == 1 ? ", but "
                      : ", and ") +
            format_ranks(ranks_by_value[in_order[i]]) + " " + property.verb + " " + in_order[i];
  }
  return text + ".";
}

}  // namespace

std::optional<std::string> find_mismatch(const std::string& name, std::span<const int> ranks,
                                         std::span<const Signature> sent) {
  const Kind kind = sent[0].kind;
  for (const Property& property : properties_of(kind)) {
    const auto& same = property.same ? property.same : property.of;
    const std::string first = same(sent[0]);
    if (std::ranges::any_of(sent, [&](const Signature& other) { return same(other) != first; })) {
      return describe(property, name, ranks, sent);
    }
  }
  return std::nullopt;
}

}  // namespace farandole::engine
