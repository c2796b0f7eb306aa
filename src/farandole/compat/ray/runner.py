"""`horovod.ray.runner`."""

from __future__ import annotations

from typing import Any

from farandole.control.launcher.plan.environment import place_variables
from farandole.ray.executor import RayExecutor
from farandole.ray.placement import find_node_places
from farandole.ray.settings import RaySettings as MiniSettings
from farandole.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "Coordinator", "MiniSettings", "RayExecutor"]


class Coordinator:
    """Computes the place of each worker from the node that it is on.

    Args:
        settings: the settings of the executor.
    """

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self._nodes: dict[int, str] = {}

    @property
    def world_size(self) -> int:
        """The number of workers that have registered."""
        return len(self._nodes)

    def register(self, hostname: str, node_id: str, world_rank: int) -> None:
        """Record the node of a worker."""
        self._nodes[world_rank] = node_id

    def finalize_registration(self) -> dict[int, dict[str, str]]:
        """Return the variables for each worker's place, by rank."""
        places = find_node_places([self._nodes[rank] for rank in sorted(self._nodes)])
        return {rank: place_variables(rank, len(places), place) for rank, place in enumerate(places)}
