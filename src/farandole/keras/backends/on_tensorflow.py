"""Keras with TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import farandole.tensorflow as hvd
from farandole.core.dtype import Adasum
from farandole.errors import InvalidRequestError
from farandole.keras.options import Options
from farandole.tensorflow.elastic import in_loop
from farandole.tensorflow.errors import translate, translating

__all__ = [
    "LEAVES_OUT_BY_ITSELF",
    "allgather",
    "allreduce",
    "as_it_is",
    "broadcast",
    "check_scope",
    "compression",
    "dense",
    "reduce",
    "reducescatter",
    "translate",
]

compression = hvd.Compression

LEAVES_OUT_BY_ITSELF = False


def check_scope() -> None:
    """Raise InvalidRequestError within the scope of a strategy of TensorFlow's."""
    if tf.distribute.has_strategy():
        kind = type(tf.distribute.get_strategy()).__name__
        raise InvalidRequestError(
            f"DistributedOptimizer cannot be used under tf.distribute's {kind}: both would reduce the gradients. Make "
            "the model outside of the strategy's scope, and start the workers with `farandole run`."
        )


def as_it_is(function: Any) -> Any:
    """Return a function of ours so that the backend does not rewrite it within functions of the user's."""
    return tf.autograph.experimental.do_not_convert(function)


def dense(gradient: Any) -> Any:
    """Return a gradient as a tensor of all its elements."""
    return tf.convert_to_tensor(gradient)


def reduce(
    gradients: Sequence[Any],
    names: Sequence[str],
    bundles: list[list[int]] | None,
    *,
    op: int,
    options: Options,
    scales: tuple[float, float],
) -> list[Any]:
    """Return the reduced gradients; see `gradients.GradientReduction`."""
    check_scope()
    prescale, postscale = scales
    given = list(gradients)
    if options.sparse_as_dense or op == Adasum or in_loop.is_on():
        given = [dense(gradient) for gradient in given]
    results: list[Any] = [None] * len(given)
    whole = []
    for index, gradient in enumerate(given):
        if isinstance(gradient, tf.IndexedSlices):
            results[index] = _reduce_slices(gradient, names[index], op, options, prescale * postscale)
        else:
            whole.append(index)
    if in_loop.is_on():
        return in_loop.reduce(
            given, names, op=op, prescale=prescale, postscale=postscale, process_set=options.process_set
        )
    for bundle in [[index] for index in whole] if bundles is None else bundles:
        for same_type in _by_type([index for index in bundle if index in whole], given):
            reduced = hvd.grouped_allreduce(
                [given[index] for index in same_type],
                compression=options.compression,
                op=op,
                prescale_factor=prescale,
                postscale_factor=postscale,
                process_set=options.process_set,
                name=f"{names[same_type[0]]}-{len(same_type)}",
                ignore_name_scope=True,
            )
            for index, result in zip(same_type, reduced, strict=True):
                results[index] = result
    return results


def _reduce_slices(slices: Any, name: str, op: int, options: Options, factor: float) -> Any:
    reduced = hvd.allreduce(slices, op=op, name=name, process_set=options.process_set, ignore_name_scope=True)
    if factor == 1.0:
        return reduced
    return tf.IndexedSlices(reduced.values * factor, reduced.indices, dense_shape=reduced.dense_shape)


def _by_type(indices: list[int], tensors: Sequence[Any]) -> list[list[int]]:
    """Return these in lists of one element type each, as a group has one."""
    kinds = dict.fromkeys(tensors[index].dtype for index in indices)
    return [[index for index in indices if tensors[index].dtype == kind] for kind in kinds]


# --- what users call ---------------------------------------------------------------------------------------------


@translating
def allreduce(value: Any, name: str | None, op: int, prescale: float, postscale: float, compression: Any) -> Any:
    """Return the reduction of all ranks' values."""
    return hvd.allreduce(
        tf.convert_to_tensor(value),
        name=name,
        op=op,
        prescale_factor=prescale,
        postscale_factor=postscale,
        compression=compression,
    )


@translating
def allgather(value: Any, name: str | None) -> Any:
    """Return the rows of all ranks."""
    return hvd.allgather(tf.convert_to_tensor(value), name=name)


@translating
def broadcast(value: Any, root_rank: int, name: str | None) -> Any:
    """Return the root's value."""
    return hvd.broadcast(tf.convert_to_tensor(value), root_rank, name=name)


@translating
def reducescatter(value: Any, name: str | None, op: int) -> Any:
    """Return this rank's rows of the reduction."""
    return hvd.reducescatter(tf.convert_to_tensor(value), op=op, name=name)
