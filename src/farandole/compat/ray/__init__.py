"""`horovod.ray`."""

from farandole.compat.ray.elastic import ElasticRayExecutor
from farandole.ray.executor import RayExecutor
from farandole.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]
