"""Batch normalization over the batches of all workers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from farandole.errors import InvalidRequestError
from farandole.tensorflow import ops
from farandole.tensorflow.reduction import names_in_graphs
from farandole.worker.collectives.allgather import ALLGATHER
from farandole.worker.collectives.allreduce import ALLREDUCE
from farandole.worker.collectives.declaration import PLAIN
from farandole.worker.core.basics import current
from farandole.worker.core.dtype import Sum
from farandole.worker.core.group import global_process_set

_name = names_in_graphs("SyncBatchNormalization")


@tf.keras.utils.register_keras_serializable(package="farandole")
class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """Normalizes by the mean and the variance of the batches of all workers, whose sizes may differ.

    Example:
        >>> model.add(hvd.SyncBatchNormalization())
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        """Create a layer.

        Args:
            fused: must be False, because the fused computation uses only one worker's batch.
            kwargs: the arguments of Keras' BatchNormalization.

        Raises:
            ValueError: fused is True or None.
        """
        if fused is not False:
            raise InvalidRequestError("SyncBatchNormalization does not support fused=True.")
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Return the mean and the variance; both Keras 2 and 3 call this method."""
        mean, variance = super()._moments(inputs, *args, **kwargs)
        session = current()
        if session.world.size == 1 and session.notices is None:
            return mean, variance
        mask = kwargs.get("mask", args[-1] if args else None)
        return _of_all_workers(mean, variance, _count(inputs, mean, mask if tf.is_tensor(mask) else None))


def _count(inputs: Any, mean: Any, mask: Any) -> Any:
    """Return the number of values that each mean is computed from."""
    if mask is not None:
        return tf.reduce_sum(tf.cast(mask, mean.dtype))
    return tf.cast(tf.size(inputs, tf.int64) // tf.size(mean, tf.int64), mean.dtype)


def _of_all_workers(mean: Any, variance: Any, count: Any) -> tuple[Any, Any]:
    """Return the mean and the variance over all workers, given those of this worker's `count` values."""
    # An empty batch has a mean of nan, and counts for nothing.
    mean, variance = (tf.where(count > 0, each, tf.zeros_like(each)) for each in (mean, variance))
    own = tf.concat([tf.reshape(mean, [-1]), tf.reshape(variance, [-1]), [count]], 0)
    rows = _of_each_worker(own)
    features = tf.size(mean)
    means, variances, counts = tf.split(rows, [features, features, 1], axis=1)
    shares = counts / tf.reduce_sum(counts)
    total_mean = tf.reduce_sum(means * shares, 0)
    # Computed from differences to the mean: a mean of squares minus the square of the mean would lose digits.
    total_variance = tf.reduce_sum((variances + tf.square(means - total_mean)) * shares, 0)
    return tf.reshape(total_mean, tf.shape(mean)), tf.reshape(total_variance, tf.shape(mean))


@tf.custom_gradient
def _of_each_worker(own: Any) -> Any:
    """Return all workers' rows. The gradient is that of the sum of all workers' losses."""
    name = _name()
    (rows,) = ops.run(ALLGATHER, PLAIN, [own[None]], {}, name=name, process_set=global_process_set).outputs

    def gradient(upstream: Any) -> Any:
        options = {"op": Sum, "prescale": 1.0, "postscale": 1.0}
        (total,) = ops.run(
            ALLREDUCE, PLAIN, [upstream], options, name=f"{name}.gradient", process_set=global_process_set
        ).outputs
        return total[ops.rank()]

    return rows, gradient
