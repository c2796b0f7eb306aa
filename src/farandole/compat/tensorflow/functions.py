"""`horovod.tensorflow.functions`, where scripts import broadcasts and objects from."""

from farandole.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from farandole.tensorflow.variables import broadcast_variables

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn", "broadcast_variables"]
