// The kinds of requests: one row for each, in a file of its own under engine/kinds.
//
// A row defines the name of these requests, their options, the errors that do not depend on other ranks, what they need
// from a backend, how members' shapes may differ, and the job that they become.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "collective/algorithm_table.h"
#include "collective/group.h"

namespace farandole::engine {

struct Options;
struct Request;
struct Runnable;

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
  kTransfer = 9,  // from root to peer, which are part of its name; no other rank takes part
  kReduce = 10,
};
inline constexpr uint8_t kLastKind = 10;
inline constexpr size_t kKinds = kLastKind + 1;

// The properties of the requests of a kind, one bit for each; they decide which options the requests take. The bits are
// part of the C ABI.
enum Has : uint32_t { kTensor = 1, kReduction = 2, kCompression = 4, kRoot = 8, kPeer = 16 };

// How the first dimensions of the members' tensors are related. All other dimensions are equal.
enum class Rows : uint8_t {
  kEqual,
  kAgreed,  // each member has its own, and all learn it in the agreement
  kOwn,     // each member has its own, and tells the others while data moves
};

// The memory of its caller that a request with elements needs.
enum class Memory : uint8_t { kNone, kInput, kInputAndOutput, kInputOrOutput };

struct KindRow {
  const char* name;  // "allreduce"
  uint32_t has = 0;  // of Has
  Rows rows = Rows::kEqual;
  Memory memory = Memory::kNone;
  bool merges = false;  // whether several requests may become one job
  bool shares = false;  // whether the members share the rows of the result, as evenly as can be; the first get one more
  // The size of the output of this member, if it has one. Null: that of its input.
  size_t (*output_bytes)(const Request& request, const collective::Group& group) = nullptr;
  // The operation of a backend that it takes. Null: agreement is all it takes.
  collective::Operation (*operation)(const Options& options) = nullptr;
  // Throws Error(kInvalidArgument) when this rank must not ask for it in this group. What depends on the other ranks is
  // seen when all have asked. Null: there is nothing to check.
  void (*check)(const Request& request, const collective::Group& group, int rank) = nullptr;
  // Makes the job of an agreed bucket for the members of a group. It refers to the bucket's requests, and an allreduce
  // to `copied`. Null as `operation` is.
  collective::Job (*make_job)(const collective::Group& group, std::span<Runnable* const> bucket,
                              collective::Copied& copied) = nullptr;
};

namespace kinds {
extern const KindRow kAllreduce, kAllgather, kBroadcast, kBarrier, kAddGroup, kRemoveGroup, kAlltoall, kReducescatter,
    kJoin, kTransfer, kReduce;
}

// The kinds in the order of their numbers.
inline constexpr std::array<const KindRow*, kKinds> kKindTable = {
    &kinds::kAllreduce, &kinds::kAllgather,   &kinds::kBroadcast, &kinds::kBarrier,
    &kinds::kAddGroup,  &kinds::kRemoveGroup, &kinds::kAlltoall,  &kinds::kReducescatter,
    &kinds::kJoin,      &kinds::kTransfer,    &kinds::kReduce};

inline const KindRow& row_of(Kind kind) noexcept { return *kKindTable[static_cast<size_t>(kind)]; }
inline const char* name_of(Kind kind) noexcept { return row_of(kind).name; }

}  // namespace farandole::engine
