"""All collectives that have tensors, by name. `barrier` and `join` have none: see `farandole.collectives.barrier`."""

from farandole.collectives.allgather import ALLGATHER
from farandole.collectives.allreduce import ALLREDUCE
from farandole.collectives.alltoall import ALLTOALL
from farandole.collectives.broadcast import BROADCAST
from farandole.collectives.reducescatter import REDUCESCATTER

COLLECTIVES = {collective.name: collective for collective in (ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER)}
