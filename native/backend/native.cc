#include "backend/native.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"

namespace farandole::backend {
namespace {

using collective::AllgatherJob;
using collective::AllreduceJob;
using collective::AlltoallJob;
using collective::BroadcastJob;
using collective::Choice;
using collective::CompressedJob;
using collective::Group;
using collective::ReducescatterJob;

// How long a revoke that another worker has heard may take to reach us.
constexpr double kRevokePatienceSeconds = 1.0;

// No chunk is smaller, of whatever element type: it must hold a cache line, and be worth a meeting or a message.
constexpr uint64_t kSmallestPiece = 4096;

std::byte* allocate_staging(transport::Arena& arena, size_t piece_bytes) {
  const size_t bytes = transport::kWindows * piece_bytes;
  void* const memory = arena.allocate(bytes);
  if (memory == nullptr) {
    throw base::Error(base::Code::kUnavailable, "the arena has no room for " + std::to_string(bytes) +
                                                    " bytes of staging; raise FARANDOLE_ARENA_BYTES");
  }
  return static_cast<std::byte*>(memory);
}

// A group of one: nothing moves, but the arithmetic stays.
void run_alone(const AllreduceJob& job) {
  for (const collective::Piece& piece : job.pieces) {
    if (piece.output != nullptr) {
      reduce::scale_to(job.dtype, piece.input, piece.output, piece.count, job.prescale);
      reduce::scale_to(job.dtype, piece.output, piece.output, piece.count, job.postscale);
    }
  }
}

void run_alone(const ReducescatterJob& job) {
  reduce::scale_to(job.dtype, job.input, job.output, job.counts.front(), job.prescale);
  reduce::scale_to(job.dtype, job.output, job.output, job.counts.front(), job.postscale);
}

void copy_alone(const void* input, void* output, size_t bytes) {
  if (input != output && bytes > 0) {
    std::memcpy(output, input, bytes);
  }
}

}  // namespace

Native::Native(transport::FrameMultiplexer& frames, transport::Arena& arena, Tuning tuning)
    : frames_(frames),
      arena_(arena),
      tuning_(std::move(tuning)),
      memory_(allocate_staging(arena, tuning_.piece_bytes)),
      sequence_(frames),
      staging_(sequence_, memory_, tuning_.piece_bytes) {
  set_knobs(tuning_.knobs);
}

Native::~Native() { arena_.release(memory_); }

void Native::set_knobs(const collective::Knobs& knobs) {
  const uint64_t piece = tuning_.piece_bytes;
  tuning_.knobs = knobs;
  tuning_.knobs.chunk_bytes = std::max<uint64_t>(knobs.chunk_bytes, kSmallestPiece);
  tuning_.knobs.small_bytes = std::min<uint64_t>(knobs.small_bytes, piece);
  tuning_.knobs.link_chunk_bytes = std::max<uint64_t>(knobs.link_chunk_bytes, kSmallestPiece);
}

collective::Topology Native::topology(const Group& group) const {
  return collective::topology_of(group, frames_.mesh().hosts());
}

// A survivor that has heard of a loss before us may already be putting its memory to new use, so that what we read
// there was not what we were meant to read. The revoke that it heard is on its way to us.
void Native::require_same_generation(const Group& group) {
  transport::Mesh& mesh = frames_.mesh();
  for (const int rank : group.members) {
    const transport::ArenaView* const arena = mesh.arena(rank);
    if (arena == nullptr || arena->serves(mesh.generation())) {
      continue;
    }
    const auto deadline = base::Deadline::after_seconds(kRevokePatienceSeconds);
    frames_.wait([&] { return deadline.passed(); });  // throws when the revoke comes
    mesh.world_status().revoke({rank, transport::Sign::kRevoked,
                                "rank " + std::to_string(rank) + " has gone on to another generation without us"});
    mesh.world_status().throw_if_revoked();
  }
}

collective::Context Native::context(const Group& group) { return {frames_, sequence_, staging_, group, tuning_.knobs}; }

Choice Native::choose_allreduce(const Group& group, size_t tensor_bytes) const {
  return collective::choose_allreduce(topology(group), tensor_bytes, tuning_.knobs, tuning_.algorithm);
}

Choice Native::choose_allgather(const Group& group) const {
  return collective::choose_allgather(topology(group), tuning_.algorithm);
}

Choice Native::choose_broadcast(const Group& group) const {
  return collective::choose_broadcast(topology(group), tuning_.algorithm);
}

Choice Native::choose_alltoall(const Group& group) const {
  return collective::choose_alltoall(topology(group), tuning_.algorithm);
}

Choice Native::choose_reducescatter(const Group& group) const {
  return collective::choose_reducescatter(topology(group), tuning_.algorithm);
}

void Native::begin(uint32_t decision) {
  sequence_.begin(decision);
  frames_.set_collective(decision);
}

bool Native::stage(const Group& group, const Choice& choice, const AllreduceJob& job) {
  if (group.size() == 1 || choice.algorithm->stage == nullptr) {
    return false;
  }
  collective::Context with = context(group);
  choice.algorithm->stage(with, job);
  return true;
}

void Native::run(const Group& group, const Choice& choice, const AllreduceJob& job) {
  if (group.size() == 1) {
    run_alone(job);
    return;
  }
  collective::Context with = context(group);
  choice.algorithm->allreduce(with, job);
  require_same_generation(group);
}

void Native::run(const Group& group, const Choice& choice, const CompressedJob& job) {
  if (group.size() == 1) {
    collective::compressed_alone(job);
    return;
  }
  collective::Context with = context(group);
  choice.algorithm->compressed(with, job);
}

void Native::run(const Group& group, const Choice& choice, const AllgatherJob& job) {
  if (group.size() == 1) {
    copy_alone(job.input, job.output, job.bytes.front());
    return;
  }
  collective::Context with = context(group);
  choice.algorithm->allgather(with, job);
  require_same_generation(group);
}

void Native::run(const Group& group, const Choice& choice, const BroadcastJob& job) {
  if (group.size() == 1) {
    copy_alone(job.input, job.output, job.bytes);
    return;
  }
  collective::Context with = context(group);
  choice.algorithm->broadcast(with, job);
  require_same_generation(group);
}

void Native::run(const Group& group, const Choice& choice, const AlltoallJob& job) {
  if (group.size() == 1) {
    copy_alone(job.input, job.output(job.rows), static_cast<size_t>(job.rows.front()) * job.row_bytes);
    return;
  }
  collective::Context with = context(group);
  choice.algorithm->alltoall(with, job);
  require_same_generation(group);
}

void Native::run(const Group& group, const Choice& choice, const ReducescatterJob& job) {
  if (group.size() == 1) {
    run_alone(job);
    return;
  }
  collective::Context with = context(group);
  choice.algorithm->reducescatter(with, job);
  require_same_generation(group);
}

}  // namespace farandole::backend
