// The collectives that move data and add nothing, each by MPI's own: MPI_Ibcast, MPI_Iallgatherv, and MPI_Ialltoallv
// after an MPI_Ialltoall of the counts. Data goes through rooms, in rounds of which two are under way.
#pragma once

#include <cstddef>

#include "backend/mpi/progress.h"
#include "backend/mpi/rooms.h"
#include "collective/algorithm_table.h"

namespace farandole::backend::mpi {

// The communicator of a collective: it has `members` workers, of which this one is number `me`.
struct Among {
  Comm comm;
  size_t members;
  size_t me;
};

void broadcast(Progress& progress, Rooms& rooms, const Among& among, const collective::BroadcastJob& job);
void allgather(Progress& progress, Rooms& rooms, const Among& among, const collective::AllgatherJob& job);
void alltoall(Progress& progress, Rooms& rooms, const Among& among, const collective::AlltoallJob& job);

}  // namespace farandole::backend::mpi
