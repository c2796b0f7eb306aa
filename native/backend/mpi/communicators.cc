#include "backend/mpi/communicators.h"

#include <algorithm>
#include <memory>
#include <string>

#include "base/error.h"

namespace farandole::backend::mpi {
namespace {

// Tells our communicators apart from others that are made of the same processes at the same time.
constexpr int kTag = 19;

struct Place {
  int rank;
  int size;
};

// Throws unless all of them are different places of one MPI world.
void require_one_world(const std::vector<Place>& places, const std::string& version) {
  for (size_t k = 0; k < places.size(); ++k) {
    for (size_t other = 0; other < k; ++other) {
      if (places[k].size == places[other].size && places[k].rank != places[other].rank) {
        continue;
      }
      const auto told = [&](size_t i) {
        return "rank " + std::to_string(i) + " is process " + std::to_string(places[i].rank) + " of " +
               std::to_string(places[i].size);
      };
      throw base::Error(base::Code::kUnavailable,
                        "MPI has not started these workers together: in " + version + ", " + told(other) + ", and " +
                            told(k) + ". Start the job with that MPI's own mpirun or with srun: `farandole run " +
                            "--launcher mpirun --backend mpi`");
    }
  }
}

}  // namespace

Communicators::Communicators(Progress& progress, const Process& process) : progress_(progress), process_(process) {
  learn_places();
}

void Communicators::learn_places() {
  transport::FrameMultiplexer& frames = progress_.frames();
  const int me = frames.mesh().rank();
  const auto size = static_cast<size_t>(frames.mesh().size());
  std::vector<Place> places(size);
  places[static_cast<size_t>(me)] = {process_.rank(), process_.size()};
  std::vector<uint64_t> came(size);
  for (size_t peer = 0; peer < size; ++peer) {
    if (static_cast<int>(peer) != me) {
      frames.send(static_cast<int>(peer), std::as_bytes(std::span(&places[static_cast<size_t>(me)], 1)));
      came[peer] = frames.recv(static_cast<int>(peer), std::as_writable_bytes(std::span(&places[peer], 1)));
    }
  }
  frames.flush();
  require_one_world(places, process_.version());
  for (const Place& place : places) {
    places_.push_back(place.rank);
  }
}

Communicators::~Communicators() {
  int finalized = 0;
  if (process_.given_up() || progress_.mpi().finalized(&finalized) != kSuccess || finalized != 0) {
    return;
  }
  for (auto& [ranks, comm] : made_) {
    progress_.mpi().comm_free(&comm);
  }
}

Comm Communicators::of(std::span<const int> ranks) {
  std::vector<int> key(ranks.begin(), ranks.end());
  if (const auto found = made_.find(key); found != made_.end()) {
    return found->second;
  }
  const Comm comm = create(ranks);
  made_.emplace(std::move(key), comm);
  return comm;
}

Comm Communicators::create(std::span<const int> ranks) {
  struct Made {
    std::vector<int> members;
    Comm comm = Comm::kNone;
  };
  const auto made = std::make_shared<Made>();  // the call may outlive our wait for it
  for (const int rank : ranks) {
    made->members.push_back(places_[static_cast<size_t>(rank)]);
  }
  progress_.run([&process = process_, made] {
    const Functions& mpi = process.functions();
    GroupHandle world = GroupHandle::kNone;
    GroupHandle group = GroupHandle::kNone;
    process.require(mpi.comm_group(process.constants().world, &world), "MPI_Comm_group");
    process.require(mpi.group_incl(world, static_cast<int>(made->members.size()), made->members.data(), &group),
                    "MPI_Group_incl");
    process.require(mpi.comm_create_group(process.constants().world, group, kTag, &made->comm),
                    "MPI_Comm_create_group");
    process.require(mpi.comm_set_errhandler(made->comm, process.constants().errors_return), "MPI_Comm_set_errhandler");
    process.require(mpi.group_free(&group), "MPI_Group_free");
    process.require(mpi.group_free(&world), "MPI_Group_free");
  });
  return made->comm;
}

}  // namespace farandole::backend::mpi
