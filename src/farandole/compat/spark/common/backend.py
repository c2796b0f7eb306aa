"""`horovod.spark.common.backend`."""

from farandole.spark.backend import Backend, SparkBackend

__all__ = ["Backend", "SparkBackend"]
