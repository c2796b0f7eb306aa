// The communicators of one world, one for each list of its workers that has needed one.
//
// Making one waits for all workers of the list, and for nobody else. It is done at the first collective of that list,
// so in the common order of decisions, in which no two workers can wait for each other.
//
// Threads: only the thread that makes progress uses it.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "backend/mpi/progress.h"

namespace farandole::backend::mpi {

class Communicators {
 public:
  // Tells all workers of the mesh this one's number in MPI, and learns theirs. Throws Error(kUnavailable), the same on
  // all of them, when MPI has not started them together.
  Communicators(Progress& progress, const Process& process);
  ~Communicators();
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  // The communicator in which the workers of these ranks, this one included, have the numbers 0, 1, 2 ... in this
  // order.
  Comm of(std::span<const int> ranks);

 private:
  void learn_places();
  Comm create(std::span<const int> ranks);

  Progress& progress_;
  const Process& process_;
  std::vector<int> places_;  // in MPI_COMM_WORLD, by rank
  std::map<std::vector<int>, Comm> made_;
};

}  // namespace farandole::backend::mpi
