// The row of NCCL, which this version does not have: tensors of GPUs are reduced in host memory by the other backends.
#include "backend/backend.h"

namespace farandole::backend {

extern const Row kNccl;
const Row kNccl = {"nccl",
                   "collectives among GPUs by NVIDIA's library",
                   "this version does not support it",
                   {bit_of(MemoryKind::kDevice), kAllOperations, true},
                   nullptr};

}  // namespace farandole::backend
