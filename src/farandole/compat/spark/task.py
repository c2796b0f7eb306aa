"""`horovod.spark.task`."""

from farandole.spark.task import get_available_devices

__all__ = ["get_available_devices"]
