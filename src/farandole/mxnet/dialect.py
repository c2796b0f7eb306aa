"""The dialect of MXNet's functions. It does not import MXNet, so that the stub can be generated without it."""

from farandole.worker.collectives.compression import NoneCompressor
from farandole.worker.collectives.declaration import Parameter
from farandole.worker.collectives.dialect import Dialect


class MXNetDialect(Dialect):
    """Horovod's arguments, with the priority among the operations of MXNet's engine."""

    framework = "mxnet"
    noun = "array"
    requirement = "a dense array in host memory, of the same element type on all ranks."
    failure = (
        "mxnet.base.MXNetError: where the result is used: the ranks' {tensor}s do not fit together, or a worker was "
        "lost."
    )
    has_later = False
    no_compression = NoneCompressor
    further = (
        Parameter(
            "priority",
            "int",
            0,
            "of the calls whose arrays are ready, MXNet's engine begins those with the highest one first.",
        ),
    )
    everywhere = ("priority",)
