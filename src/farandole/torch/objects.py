"""Collectives on any picklable Python object; see `farandole.worker.collectives.objects`."""

from farandole.torch.no_compile import no_compile
from farandole.worker.collectives import objects

broadcast_object = no_compile(objects.broadcast_object)
allgather_object = no_compile(objects.allgather_object)
