// The UCX backend is not in this build: this row says so. A build that has it compiles another file of this folder
// instead.
#include "backend/backend.h"

namespace farandole::backend {

extern const Row kUcx;
const Row kUcx = {"ucx",
                  "InfiniBand, Slingshot and the like by UCX itself, without MPI",
                  "not there yet in this version; an MPI with UCX reaches the same networks (--backend mpi)",
                  {bit_of(MemoryKind::kHost), kAllOperations, true},
                  nullptr};

}  // namespace farandole::backend
