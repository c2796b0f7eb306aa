#include "backend/mpi/mpi.h"

#include <algorithm>
#include <array>
#include <memory>

namespace farandole::backend {
namespace mpi {
namespace {

using collective::Algorithm;
using collective::Choice;
using collective::Group;
using collective::Topology;

bool across_hosts(const Topology& topology) { return topology.hosts > 1; }

constexpr Algorithm kAllgather{
    .name = "mpi", .collective = "allgather", .description = "MPI_Iallgatherv", .fits = across_hosts, .fusible = true};
constexpr Algorithm kBroadcast{
    .name = "mpi", .collective = "broadcast", .description = "MPI_Ibcast", .fits = across_hosts, .fusible = true};
constexpr Algorithm kAlltoall{.name = "mpi",
                              .collective = "alltoall",
                              .description = "MPI_Ialltoall of the counts, then MPI_Ialltoallv",
                              .fits = across_hosts,
                              .fusible = false};

Choice by_mpi(const Algorithm& algorithm) { return {&algorithm, kNoRow, "members on several hosts: MPI moves it"}; }

}  // namespace

bool takes(const Topology& topology, const Need& need) {
  switch (need.operation) {
    case Operation::kAdasum:
    case Operation::kCompressedAllreduce:
    case Operation::kTransfer:
      return false;  // they go over links
    default:
      return across_hosts(topology);
  }
}

Choice choose(const Topology& topology, const Need& need, std::string_view wanted) {
  const bool two_levels = topology.members > topology.hosts && topology.fewest_on_a_host > 1 && wanted != "exchange";
  switch (need.operation) {
    case Operation::kAllgather:
      return by_mpi(kAllgather);
    case Operation::kBroadcast:
      return by_mpi(kBroadcast);
    case Operation::kAlltoall:
      return by_mpi(kAlltoall);
    case Operation::kAllreduce:
      return collective::choose(need.operation, topology, need.bytes, {}, two_levels ? "two_level" : "exchange");
    default:
      return collective::choose(need.operation, topology, need.bytes, {}, "exchange");
  }
}

Mpi::Mpi(const World& world) : Mpi(world, Process::here()) {}

Mpi::Mpi(const World& world, Process& process)
    : process_(process),
      frames_(world.frames),
      wanted_(world.tuning.algorithm),
      progress_(world.frames, process),
      communicators_(progress_, process),
      exchanges_(progress_, communicators_),
      native_(world.frames, world.arena, world.tuning, &exchanges_) {}

Choice Mpi::choose(const Group& group, const Need& need) const {
  const Topology& topology = topologies_.of(group, frames_.mesh().hosts());
  return takes(topology, need) ? mpi::choose(topology, need, wanted_) : native_.choose(group, need);
}

Among Mpi::among(const Group& group) {
  return {communicators_.of(group.members), group.size(), static_cast<size_t>(group.index)};
}

device::MarkPointer Mpi::run(const Group& group, const Choice& choice, const collective::Job& job,
                             std::span<const device::MarkPointer> after) {
  if (choice.index != kNoRow) {
    return native_.run(group, choice, job, after);
  }
  if (const auto* const allgathered = std::get_if<collective::AllgatherJob>(&job)) {
    allgather(progress_, rooms_, among(group), *allgathered);
  } else if (const auto* const broadcasted = std::get_if<collective::BroadcastJob>(&job)) {
    broadcast(progress_, rooms_, among(group), *broadcasted);
  } else {
    alltoall(progress_, rooms_, among(group), std::get<collective::AlltoallJob>(job));
  }
  return nullptr;
}

}  // namespace mpi

namespace {

void start_mpi(const StartSettings& settings) {
  mpi::Process::here().start(settings.library, settings.patience_seconds);
}

std::string probe_mpi(const std::string& library) {
  const mpi::Library found = mpi::load_library(library);
  return found.version + " (" + found.path + ")";
}

std::unique_ptr<Backend> make_mpi(const World& world) { return std::make_unique<mpi::Mpi>(world); }

}  // namespace

extern const Row kMpi;
const Row kMpi = {"mpi",    "the MPI library that started the job between hosts, shared memory within them",
                  nullptr,  {bit_of(MemoryKind::kHost), kAllOperations, true},
                  make_mpi, start_mpi,
                  probe_mpi};

}  // namespace farandole::backend
