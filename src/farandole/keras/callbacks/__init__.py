"""The callbacks for `model.fit`."""

from farandole.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from farandole.keras.callbacks.checkpoint import BestModelCheckpoint
from farandole.keras.callbacks.distributed import Distributed
from farandole.keras.callbacks.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from farandole.keras.callbacks.metrics import MetricAverageCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "Distributed",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
