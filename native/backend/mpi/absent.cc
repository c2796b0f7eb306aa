// The MPI backend is not in this build: this row says so. A build that has it compiles another file of this folder
// instead.
#include "backend/backend.h"

namespace farandole::backend {

extern const Row kMpi;
const Row kMpi = {"mpi",
                  "collectives by the MPI library that started the job",
                  "not there yet in this version; no MPI is needed",
                  {bit_of(MemoryKind::kHost), kAllOperations, true},
                  nullptr};

}  // namespace farandole::backend
