"""Keras with TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import farandole.tensorflow as hvd
from farandole.tensorflow.errors import translate, translating
from farandole.tensorflow.reduction import after, check_scope, divided_by_ranks, reduce, run_anyway, scaled, stand_in

__all__ = [
    "after",
    "allgather",
    "allreduce",
    "as_it_is",
    "broadcast",
    "check_scope",
    "compression",
    "dense",
    "divided_by_ranks",
    "reduce",
    "reducescatter",
    "run_anyway",
    "scaled",
    "stand_in",
    "translate",
]

compression = hvd.Compression


def as_it_is(function: Any) -> Any:
    """Return a function of ours so that the backend does not rewrite it within functions of the user's."""
    return tf.autograph.experimental.do_not_convert(function)


def dense(gradient: Any) -> Any:
    """Return a gradient as a tensor of all its elements."""
    return tf.convert_to_tensor(gradient)


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
