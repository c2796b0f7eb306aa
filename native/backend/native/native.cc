#include "backend/native/native.h"

#include "base/clock.h"
#include "base/error.h"

namespace farandole::backend {
namespace {

using collective::AllreduceJob;
using collective::Choice;
using collective::Group;

// The longest time that a revocation takes to reach us after another worker has heard of it.
constexpr double kRevokePatienceSeconds = 1.0;

std::byte* allocate_staging(transport::Arena& arena, size_t piece_bytes) {
  const size_t bytes = transport::kWindows * piece_bytes;
  void* const memory = arena.allocate(bytes);
  if (memory == nullptr) {
    throw base::Error(base::Code::kUnavailable, "the arena has no room for " + std::to_string(bytes) +
                                                    " bytes of staging; raise FARANDOLE_ARENA_BYTES");
  }
  return static_cast<std::byte*>(memory);
}

}  // namespace

Native::Native(transport::FrameMultiplexer& frames, transport::Arena& arena, Tuning tuning,
               collective::ExchangeCarrier* exchanges)
    : frames_(frames),
      arena_(arena),
      tuning_(std::move(tuning)),
      memory_(allocate_staging(arena, tuning_.piece_bytes)),
      sequence_(frames),
      staging_(sequence_, memory_, tuning_.piece_bytes),
      links_(frames, staging_),
      exchanges_(exchanges == nullptr ? links_ : *exchanges) {
  set_knobs(tuning_.knobs);
}

Native::~Native() { arena_.release(memory_); }

collective::Knobs Native::set_knobs(const collective::Knobs& knobs) {
  tuning_.knobs = collective::within_bounds(knobs, tuning_.piece_bytes);
  return tuning_.knobs;
}

// A survivor that has heard of a loss before us may already be using its memory for something else, so the data that we
// have read there may be wrong. The revocation that it has heard of is on its way to us.
void Native::require_same_generation(std::span<const int> ranks) {
  transport::Mesh& mesh = frames_.mesh();
  for (const int rank : ranks) {
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

collective::Context Native::context(const Group& group) {
  return {frames_, sequence_, staging_, group, tuning_.knobs, exchanges_};
}

Choice choose_native(const collective::Topology& topology, const Need& need, const collective::Knobs& knobs,
                     std::string_view wanted) {
  const std::string_view algorithm = need.compression.empty() ? wanted : need.compression;
  return collective::choose(need.operation, topology, need.bytes, knobs, algorithm);
}

Choice Native::choose(const Group& group, const Need& need) const {
  return choose_native(topologies_.of(group, frames_.mesh().hosts()), need, tuning_.knobs, tuning_.algorithm);
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

void Native::reduce_staged(const Group& group, const Choice& choice, const AllreduceJob& job) {
  collective::Context with = context(group);
  choice.algorithm->reduce_staged(with, job);
  require_same_generation(with.read);  // before others take the result
}

device::MarkPointer Native::run(const Group& group, const Choice& choice, const collective::Job& job,
                                std::span<const device::MarkPointer>) {
  collective::Context with = context(group);
  collective::run(with, choice, job);
  // A compressed allreduce goes over links only, so no other worker's memory is read.
  if (group.size() > 1 && !std::holds_alternative<collective::CompressedJob>(job)) {
    require_same_generation(with.read);
  }
  return nullptr;
}

namespace {

std::unique_ptr<Backend> make_native(const World& world) {
  return std::make_unique<Native>(world.frames, world.arena, world.tuning);
}

}  // namespace

extern const Row kNative;
const Row kNative = {"native",
                     "farandole's own algorithms, over shared memory and TCP",
                     nullptr,
                     {bit_of(MemoryKind::kHost), kAllOperations, true},
                     make_native};

}  // namespace farandole::backend
