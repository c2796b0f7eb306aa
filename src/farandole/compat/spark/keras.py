"""`horovod.spark.keras`."""

from farandole.spark.keras import KerasEstimator, KerasModel

__all__ = ["KerasEstimator", "KerasModel"]
