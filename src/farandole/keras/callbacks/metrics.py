"""Averaging metrics over all workers."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import keras
import numpy as np

from farandole.keras.callbacks.base import Callback
from farandole.worker.collectives.objects import allgather_object


class MetricAverageCallback(Callback):
    """Replaces the metrics of an epoch by their averages over all workers.

    Put it before callbacks that use metrics, such as `EarlyStopping`, `ReduceLROnPlateau` or `TensorBoard`. A metric
    that only some workers have is averaged over these.

    Example:
        >>> history = model.fit(x, y, callbacks=[hvd.callbacks.MetricAverageCallback()])
    """

    def __init__(self, device: str = "", weighted: bool = False) -> None:
        """Create the callback.

        Args:
            device: ignored.
            weighted: whether a worker's metrics are weighted by its number of samples; else all workers have equal
                weight.
        """
        super().__init__()
        self.weighted = weighted
        self._samples = {"": 1.0, "val_": 1.0}

    def on_test_begin(self, logs: Any = None) -> None:
        """Record the number of training samples, before the validation counts from zero."""
        self._count("")

    def on_test_end(self, logs: Any = None) -> None:
        """Record the number of validation samples."""
        self._count("val_")
        self._validated = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Reset the counts of samples."""
        self._validated = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replace the metrics in the logs by their averages."""
        if not self._validated:
            self._count("")
        average(logs, self._samples)

    def _count(self, kind: str) -> None:
        if self.weighted:
            losses = [metric for metric in self.model.metrics if metric.name == "loss" and hasattr(metric, "count")]
            if losses:
                self._samples[kind] = float(losses[0].count.numpy())


def average(logs: MutableMapping[str, Any] | None, samples: dict[str, float]) -> None:
    """Replace values by their averages over all ranks. A collective.

    Args:
        logs: values by name; None on a rank without values.
        samples: the weight of this rank by prefix of the names; the longest matching prefix is used.
    """
    mine = {name: (_number(value), _weight(name, samples)) for name, value in (logs or {}).items()}
    every = allgather_object(mine, name="keras.metrics")
    if logs is None:
        return
    for name in sorted({name for each in every for name in each}):
        found = [each[name] for each in every if name in each]
        weight = sum(weight for _, weight in found)
        if weight:
            logs[name] = sum(value * weight for value, weight in found) / weight


def _number(value: Any) -> Any:
    """Return a metric's value: a float, or an array if it has a value for each class, for example."""
    array = np.asarray(keras.ops.convert_to_numpy(value), dtype=np.float64)
    return array if array.ndim else array.item()


def _weight(name: str, samples: dict[str, float]) -> float:
    return samples[max((beginning for beginning in samples if name.startswith(beginning)), key=len)]
