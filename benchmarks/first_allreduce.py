"""A worker of the cases about starting: one allreduce, then a note of when it was done, then the end.

    python -m benchmarks.first_allreduce PEER WORKERS

No framework is imported, except where there is no other way: gloo comes with torch.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def farandole() -> float:
    """Sum with farandole's core alone."""
    from array import array

    from farandole.worker.core import basics, buffers
    from farandole.worker.core.dtype import Sum

    basics.init()
    number = array("f", [1])
    buffers.allreduce(number, op=Sum)
    return number[0]


def gloo() -> float:
    """Sum with torch.distributed, whose rank comes from torchrun's variables."""
    import torch
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    number = torch.ones(1)
    dist.all_reduce(number)
    return number.item()


def mpi() -> float:
    """Sum with mpi4py."""
    import numpy
    from mpi4py import MPI

    number = numpy.ones(1, dtype=numpy.float32)
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, number)
    return float(number[0])


if __name__ == "__main__":
    total = {"farandole": farandole, "gloo": gloo, "mpi": mpi}[sys.argv[1]]()
    (Path(os.environ["BENCHMARK_FOLDER"]) / str(os.getpid())).write_text(str(time.monotonic_ns()))
    assert total == int(sys.argv[2]), f"the sum of {sys.argv[2]} ones is {total}"
