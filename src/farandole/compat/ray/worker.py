"""`horovod.ray.worker`."""

from farandole.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker"]
