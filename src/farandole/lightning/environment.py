"""The cluster environment: ranks and sizes of the present world, in which Lightning starts no processes."""

from __future__ import annotations

import os

from lightning.fabric.plugins import ClusterEnvironment

import farandole.torch as hvd


class FarandoleEnvironment(ClusterEnvironment):
    """The workers that `farandole run`, or another launcher, has started. Creating an instance calls `hvd.init()`.

    Ranks and sizes are read each time, because they change in elastic jobs.
    """

    def __init__(self) -> None:
        super().__init__()
        hvd.init()

    @property
    def creates_processes_externally(self) -> bool:
        """Return True: Lightning starts no processes."""
        return True

    @property
    def main_address(self) -> str:
        """Return the address for process groups of torch.distributed, which farandole itself does not use."""
        return os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        """Return the port for process groups of torch.distributed."""
        return int(os.environ.get("MASTER_PORT", "29500"))

    @staticmethod
    def detect() -> bool:
        """Return whether `farandole run` has started this process."""
        return "FARANDOLE_ROSTER" in os.environ

    def world_size(self) -> int:
        """Return the number of workers."""
        return hvd.size()

    def set_world_size(self, size: int) -> None:
        """Ignore the size that Lightning derives from `devices` and `num_nodes`: the launcher decides."""

    def global_rank(self) -> int:
        """Return the rank of this worker."""
        return hvd.rank()

    def set_global_rank(self, rank: int) -> None:
        """Ignore the rank that Lightning derives from `devices` and `num_nodes`: the launcher decides."""

    def local_rank(self) -> int:
        """Return the rank of this worker on its host."""
        return hvd.local_rank()

    def node_rank(self) -> int:
        """Return the rank of this worker's host: its rank among the workers with the same local rank."""
        return hvd.cross_rank()
