"""Collectives on any Python object that can be pickled; see `farandole.collectives.objects`."""

from farandole.collectives import objects
from farandole.torch.no_compile import no_compile

broadcast_object = no_compile(objects.broadcast_object)
allgather_object = no_compile(objects.allgather_object)
