"""`horovod.common.basics`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from farandole.errors import InvalidRequestError
from farandole.worker.core import basics, built, carrier, dtype
from farandole.worker.core.group import ProcessSet
from farandole.worker.observe.observer import start_timeline, stop_timeline


class HorovodBasics:
    """The functions that all front ends share, as methods.

    Horovod creates one for each of its libraries; here all instances use the one engine of this process, and the
    arguments, the place of Horovod's library, are ignored.
    """

    Average = dtype.Average
    Sum = dtype.Sum
    Adasum = dtype.Adasum
    Min = dtype.Min
    Max = dtype.Max
    Product = dtype.Product

    init = staticmethod(basics.init)
    shutdown = staticmethod(basics.shutdown)
    is_initialized = staticmethod(basics.is_initialized)
    rank = staticmethod(basics.rank)
    size = staticmethod(basics.size)
    local_rank = staticmethod(basics.local_rank)
    local_size = staticmethod(basics.local_size)
    cross_rank = staticmethod(basics.cross_rank)
    cross_size = staticmethod(basics.cross_size)
    is_homogeneous = staticmethod(basics.is_homogeneous)

    mpi_threads_supported = staticmethod(carrier.mpi_threads_supported)
    mpi_enabled = staticmethod(carrier.mpi_enabled)
    mpi_built = staticmethod(built.mpi_built)
    gloo_enabled = staticmethod(carrier.gloo_enabled)
    gloo_built = staticmethod(built.gloo_built)
    nccl_built = staticmethod(built.nccl_built)
    ddl_built = staticmethod(built.ddl_built)
    ccl_built = staticmethod(built.ccl_built)
    cuda_built = staticmethod(built.cuda_built)
    rocm_built = staticmethod(built.rocm_built)
    sycl_built = staticmethod(built.sycl_built)

    start_timeline = staticmethod(start_timeline)
    stop_timeline = staticmethod(stop_timeline)

    def __init__(self, *library: Any) -> None:
        """Accept the place of Horovod's library, and ignore it."""

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return basics.identity().groups

    def _comm_process_set_id(self, comm: Any) -> int:
        raise InvalidRequestError(f"no process set is made of an MPI communicator here, so {comm!r} has no id.")

    def _add_process_set_impl(self, ranks: Iterable[int]) -> int:
        process_set = basics.add_process_set(ProcessSet(ranks))
        assert process_set.process_set_id is not None
        return process_set.process_set_id
