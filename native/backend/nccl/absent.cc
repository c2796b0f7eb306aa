// The NCCL backend is not in this build: this row says so. A build that has it compiles another file of this folder
// instead.
#include "backend/backend.h"

namespace farandole::backend {

extern const Row kNccl;
const Row kNccl = {"nccl",
                   "collectives among GPUs by NVIDIA's library",
                   "not there yet in this version",
                   {bit_of(MemoryKind::kDevice), kAllOperations, true},
                   nullptr};

}  // namespace farandole::backend
