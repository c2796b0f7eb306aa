// The settings that decide how fast collectives run. They may change from one decision to the next.
//
// All members of a group must run a bucket with the same values: they cut and choose by them. Rank 0's count for all;
// they travel in decisions, and so change on all ranks at the same point of the common order. None of them makes a
// result wrong; those marked (order) decide in which order elements are added between hosts, and so about its last
// bits.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace farandole::collective {

struct Knobs {
  // Bytes of a bucket of several tensors.
  uint64_t fusion_threshold = uint64_t{128} << 20;
  // The number of bytes that up to four members of a host together move through shared memory at a time: each member's
  // chunk is its share. They should fit into the cache that the members share. Between hosts, the block that one host
  // works on.
  uint64_t chunk_bytes = uint64_t{1} << 20;
  // Results from this size on are stored past the caches, where that is possible: they would not fit anyway.
  uint64_t stream_bytes = uint64_t{16} << 20;
  // Up to this size, a member reduces the whole tensor: a second synchronization would cost more than the arithmetic
  // that it saves. With more than kFewMembers members, whose data it reads, the limit is correspondingly lower.
  uint64_t small_bytes = uint64_t{16} << 10;
  // The number of bytes that a link between hosts carries while one message travels. Below it, the number of messages
  // matters more than their size. (order, with more than 8 hosts)
  uint64_t ring_bytes = uint64_t{64} << 10;
  // The piece of a message that is pipelined between two hosts.
  uint64_t link_chunk_bytes = uint64_t{256} << 10;

  bool operator==(const Knobs&) const = default;
};

// No chunk is smaller, of whatever element type: it must hold a cache line, and be worth a message.
inline constexpr uint64_t kSmallestChunk = 4096;

// The values, limited to what staging pieces of this size and links allow: the same on all members.
constexpr Knobs within_bounds(Knobs knobs, uint64_t piece_bytes) {
  knobs.chunk_bytes = std::max(knobs.chunk_bytes, kSmallestChunk);
  knobs.small_bytes = std::min(knobs.small_bytes, piece_bytes);
  knobs.link_chunk_bytes = std::max(knobs.link_chunk_bytes, kSmallestChunk);
  return knobs;
}

// Up to these numbers of members, small_bytes applies as it is: where each member reduces the tensors of all, and where
// one of them does it for all.
inline constexpr size_t kFewMembers = 64;
inline constexpr size_t kFewMembersIfStaged = 128;

constexpr uint64_t small_bytes(const Knobs& knobs, size_t members, size_t few_members) {
  return members <= few_members ? knobs.small_bytes : knobs.small_bytes / members * few_members;
}
// The most bytes that a member reduces of each member's tensor, instead of a slice.
constexpr uint64_t small_bytes(const Knobs& knobs, size_t members) { return small_bytes(knobs, members, kFewMembers); }
// The same, if the tensors were staged before the members agreed: see allreduce/direct.cc.
constexpr uint64_t small_staged_bytes(const Knobs& knobs, size_t members) {
  return small_bytes(knobs, members, kFewMembersIfStaged);
}

// A member's share of chunk_bytes. With more members, a synchronization takes longer, so the share does not become
// smaller from some number of members on.
constexpr uint64_t chunk_bytes(const Knobs& knobs, size_t members) {
  constexpr size_t kMostSharing = 4;
  return std::max(knobs.chunk_bytes / std::min(members, kMostSharing), kSmallestChunk);
}

// Every knob by its name, for code that reads, writes or tunes all of them.
struct KnobName {
  const char* name;
  uint64_t Knobs::* knob;
};
inline constexpr std::array kKnobNames = {
    KnobName{"fusion_threshold", &Knobs::fusion_threshold},
    KnobName{"chunk_bytes", &Knobs::chunk_bytes},
    KnobName{"stream_bytes", &Knobs::stream_bytes},
    KnobName{"small_bytes", &Knobs::small_bytes},
    KnobName{"ring_bytes", &Knobs::ring_bytes},
    KnobName{"link_chunk_bytes", &Knobs::link_chunk_bytes},
};

}  // namespace farandole::collective
