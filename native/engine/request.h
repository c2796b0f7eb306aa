// What a rank asks for, and what it takes for two ranks to have asked for the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reduce/dtype.h"

namespace farandole::engine {

// The numbers are part of the C ABI and of the wire format.
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
  kTransfer = 9,  // from root to peer, which are part of its name; nobody else takes part
};
inline constexpr uint8_t kLastKind = 9;
inline constexpr size_t kKinds = kLastKind + 1;
const char* name_of(Kind kind) noexcept;  // "allreduce"

// An average is a sum whose divisor is the size of the group.
enum class ReduceOp : uint8_t { kAverage = 0, kSum = 1, kAdasum = 2, kMin = 3, kMax = 4, kProduct = 5 };
const char* name_of(ReduceOp op) noexcept;  // "Average"

// How an allreduce travels. It must be the same on all ranks.
enum class Compression : uint8_t { kNone = 0, kInt8 = 1, kTopk = 2 };
inline constexpr uint8_t kLastCompression = 2;
const char* name_of(Compression compression) noexcept;  // "int8", as in the table of algorithms

// Everything about a request that the other ranks must know or agree with, except its group and name.
struct Signature {
  Kind kind = Kind::kAllreduce;
  reduce::Dtype dtype = reduce::Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;  // allreduce and reducescatter
  int32_t root = 0;              // a rank in the world; broadcast, and the one that sends in a transfer
  int32_t peer = 0;              // a rank in the world; the one that receives in a transfer
  double prescale = 1.0;
  double postscale = 1.0;
  Compression compression = Compression::kNone;  // allreduce
  double compression_ratio = 0;                  // of kTopk: which part of the elements is sent
  std::vector<int64_t> shape;

  bool operator==(const Signature&) const = default;

  int64_t elements() const noexcept;
  size_t bytes() const noexcept;
  // The elements of one row: the product of all dimensions but the first.
  int64_t row_elements() const noexcept;
  size_t row_bytes() const noexcept;
};

// Whether the first dimension is each member's own affair: that of an allgather and of an alltoall.
bool has_own_rows(Kind kind) noexcept;
// Whether this rank has a part in it, given that it is a member of the group.
bool takes_part(const Signature& signature, int rank) noexcept;

std::string format_shape(std::span<const int64_t> shape);  // "[3, 4]"
// "rank 2", "ranks 0, 1 and 3"; a long list is cut.
std::string format_ranks(std::span<const int> ranks);

// Why these signatures, sent by `ranks`, cannot run together: a sentence that says which ranks sent what. Nothing when
// they can. First dimensions that are each member's own affair may differ.
std::optional<std::string> find_mismatch(const std::string& name, std::span<const int> ranks,
                                         std::span<const Signature> sent);

}  // namespace farandole::engine
