"""Several backward passes in one step: each rank sums the gradients of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from farandole.errors import InvalidRequestError


class Passes:
    """Sums the gradients of several passes."""

    def __init__(self, count: int, *, averaged: bool = False, sparse_as_dense: bool = True) -> None:
        """Create an object without variables.

        Args:
            count: the number of passes of a step.
            averaged: whether the sum is divided by the count.
            sparse_as_dense: whether `tf.IndexedSlices` become dense; else they are refused.
        """
        self._count = count
        self._averaged = averaged
        self._sparse_as_dense = sparse_as_dense
        self._sums: list[Any] = []
        self._done: Any = None
        """The number of passes so far."""

    @property
    def counter(self) -> Any:
        """The number of passes of the next step so far, as a tensor."""
        return tf.constant(0, tf.int64) if self._done is None else self._done % self._count

    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], Any]:
        """Add the gradients of a pass to those before it.

        Args:
            gradients: the gradients, none of which is None.
            variables: the variables of the gradients; the same ones in each pass.

        Returns:
            The sums, and whether this was the last pass of a step. The next pass begins a new sum.

        Raises:
            ValueError: a gradient is sparse, or their number differs from that of the previous pass.
        """
        dense = [self._dense(gradient) for gradient in gradients]
        if self._done is None:
            with tf.init_scope():
                self._make_variables(variables)
        if len(self._sums) != len(dense):
            raise InvalidRequestError(
                f"this call has gradients of {len(dense)} variables, and an earlier one had {len(self._sums)}: with "
                "backward_passes_per_step they are the same ones in each."
            )
        is_first = tf.equal(self._done % self._count, 0)
        totals = [
            tf.convert_to_tensor(total.assign(tf.where(is_first, gradient, total + gradient)))
            for total, gradient in zip(self._sums, dense, strict=True)
        ]
        with tf.control_dependencies([is_first]):
            done = tf.convert_to_tensor(self._done.assign_add(1))
        if self._averaged:
            totals = [total / tf.cast(self._count, total.dtype) for total in totals]
        return totals, tf.equal(done % self._count, 0)

    def _dense(self, gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices) and not self._sparse_as_dense:
            raise InvalidRequestError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False. "
                "Pass sparse_as_dense=True."
            )
        return tf.convert_to_tensor(gradient)

    def _make_variables(self, like: Sequence[Any]) -> None:
        # In a graph of tf.compat.v1 they are local variables, which checkpoints and broadcasts omit.
        collections = None if tf.executing_eagerly() else [tf.compat.v1.GraphKeys.LOCAL_VARIABLES]

        def variable(initial: Any) -> Any:
            return tf.compat.v1.Variable(initial, trainable=False, use_resource=True, collections=collections)

        self._done = variable(tf.zeros([], tf.int64))
        self._sums = [variable(tf.zeros(each.shape, each.dtype)) for each in like]
