"""All collectives of tensors, by name. `barrier` and `join` have no tensors; `worker.collectives.barrier` has them."""

from farandole.worker.collectives.allgather import ALLGATHER
from farandole.worker.collectives.allreduce import ALLREDUCE
from farandole.worker.collectives.alltoall import ALLTOALL
from farandole.worker.collectives.broadcast import BROADCAST
from farandole.worker.collectives.reduce import REDUCE
from farandole.worker.collectives.reducescatter import REDUCESCATTER

COLLECTIVES = {
    collective.name: collective for collective in (ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER, REDUCE)
}
