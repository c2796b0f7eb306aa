// The request of a rank, and the conditions under which two ranks' requests match.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/options.h"
#include "reduce/dtype.h"

namespace farandole::engine {

// An element type that the engine moves and does not calculate with.
struct OpaqueType {
  std::string name;    // as ranks are told of it, such as "uint32"; "": there is none
  uint32_t bytes = 0;  // of an element

  bool operator==(const OpaqueType&) const = default;
};

// Everything about a request that the other ranks must know or agree with, except its group and name.
struct Signature : Options {
  Kind kind = Kind::kAllreduce;
  reduce::Dtype dtype = reduce::Dtype::kF32;
  OpaqueType opaque;  // if it has a name, it stands for `dtype`
  std::vector<int64_t> shape;

  const Options& options() const noexcept { return *this; }
  bool operator==(const Signature&) const = default;

  std::string type_name() const;  // "float32"
  size_t element_bytes() const noexcept;
  int64_t elements() const noexcept;
  size_t bytes() const noexcept;
  // The elements of one row: the product of all dimensions but the first.
  int64_t row_elements() const noexcept;
  size_t row_bytes() const noexcept;
};

// Returns what a request of this kind needs from a backend, except for its bytes; nothing if agreement is all it takes.
std::optional<backend::Need> need_of(Kind kind, const Options& options);
// The needs of a request from a backend.
std::optional<backend::Need> need_of(const Signature& signature);

// Whether the first dimension may differ between members.
inline bool has_own_rows(Kind kind) noexcept { return row_of(kind).rows != Rows::kEqual; }
// Returns whether this rank takes part in it, provided that it is a member of the group.
bool takes_part(const Signature& signature, int rank) noexcept;

std::string format_shape(std::span<const int64_t> shape);  // "[3, 4]"
// "rank 2", "ranks 0, 1 and 3"; a long list is cut.
std::string format_ranks(std::span<const int> ranks);

// Returns why these signatures, sent by `ranks`, cannot run together: a sentence that says which ranks sent what; empty
// if they can. First dimensions may differ if has_own_rows() says so.
std::optional<std::string> find_mismatch(const std::string& name, std::span<const int> ranks,
                                         std::span<const Signature> sent);

}  // namespace farandole::engine
