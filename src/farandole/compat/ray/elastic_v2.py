"""`horovod.ray.elastic_v2`."""

from __future__ import annotations

from farandole.control.launcher.arguments import check_flag
from farandole.ray.elastic_workers import ElasticParams
from farandole.ray.elastic_workers import ElasticWorkers as ElasticAdapter
from farandole.ray.placement import count_slots
from farandole.ray.use_ray import use_ray

__all__ = ["ElasticAdapter", "ElasticParams", "RayHostDiscovery"]


class RayHostDiscovery:
    """Finds the slots of a Ray cluster.

    Args:
        use_gpu: whether workers need GPUs.
        cpus_per_worker: CPUs of each worker.
        gpus_per_worker: GPUs of each worker.
    """

    def __init__(self, use_gpu: bool = False, cpus_per_worker: int = 1, gpus_per_worker: int = 1) -> None:
        check_flag("use_gpu", use_gpu)
        self.use_gpu = use_gpu
        self.cpus_per_worker = cpus_per_worker
        self.gpus_per_worker = gpus_per_worker

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return the number of workers that each alive node has room for, by its address."""
        return count_slots(use_ray().nodes(), self.cpus_per_worker, self.gpus_per_worker, self.use_gpu)
