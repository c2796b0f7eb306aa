"""`horovod.ray.ray_logger`."""

from farandole.ray.reports import log
from farandole.ray.reports import use_queue as configure

__all__ = ["configure", "log"]
