"""`horovod.ray.adapter`."""

from farandole.ray.adapter import Adapter

__all__ = ["Adapter"]
