"""Keras with JAX: collectives that are a part of the step that JAX compiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

import farandole.jax as hvd
from farandole.errors import FarandoleError
from farandole.worker.gradients.wrapper_options import WrapperOptions

compression = hvd.Compression


def check_scope() -> None:
    """JAX has no scope that would be in the way."""


def translate(error: BaseException) -> FarandoleError | None:
    """Return farandole's error for one of JAX's; None if it did not come from a collective."""
    return hvd.translate(error)


def as_it_is(function: Any) -> Any:
    """Return a function of ours so that the backend does not rewrite it within functions of the user's."""
    return function


def dense(gradient: Any) -> Any:
    """Return a gradient as a tensor of all its elements."""
    return gradient


def reduce(
    gradients: Sequence[Any],
    names: Sequence[str],
    bundles: list[list[int]] | None,
    *,
    op: int,
    options: WrapperOptions,
    scales: tuple[float, float],
) -> list[Any]:
    """Return the reduced gradients; see `farandole.worker.gradients.wrapper_gradients.Backend`."""
    results: list[Any] = [None] * len(gradients)
    for bundle in [list(range(len(gradients)))] if bundles is None else bundles:
        for kind in dict.fromkeys(gradients[index].dtype for index in bundle):
            same_type = [index for index in bundle if gradients[index].dtype == kind]
            reduced = hvd.grouped_allreduce(
                [gradients[index] for index in same_type],
                compression=options.compression,
                op=op,
                prescale_factor=scales[0],
                postscale_factor=scales[1],
                process_set=options.process_set,
                name=f"{names[same_type[0]]}-{len(same_type)}",
            )
            for index, result in zip(same_type, reduced, strict=True):
                results[index] = result
    return results


def scaled(gradient: Any, factor: float) -> Any:
    """Return a gradient times a factor."""
    return gradient * factor


def divided_by_ranks(gradient: Any, options: WrapperOptions) -> Any:
    """Return a gradient divided by the number of ranks that reduce."""
    return gradient / len(options.process_set.ranks)


def stand_in(variable: Any) -> Any:
    """Return an empty tensor of a variable's type."""
    return jax.numpy.zeros(0, variable.dtype)


def after(gradient: Any, results: Sequence[Any]) -> Any:
    """Return the gradient: no call is left out here."""
    return gradient


def run_anyway(results: Sequence[Any]) -> None:
    """Do nothing: no call is left out here."""


# --- what users call ---------------------------------------------------------------------------------------------


def allreduce(value: Any, name: str | None, op: int, prescale: float, postscale: float, compression: Any) -> Any:
    """Return the reduction of all ranks' values."""
    return hvd.allreduce(
        _array(value), name=name, op=op, prescale_factor=prescale, postscale_factor=postscale, compression=compression
    )


def broadcast(value: Any, root_rank: int, name: str | None) -> Any:
    """Return the root's value."""
    return hvd.broadcast(_array(value), root_rank, name=name)


def allgather(value: Any, name: str | None) -> Any:
    """Return the rows of all ranks."""
    return hvd.allgather(_array(value), name=name)


def reducescatter(value: Any, name: str | None, op: int) -> Any:
    """Return this rank's rows of the reduction."""
    return hvd.reducescatter(_array(value), op=op, name=name)


def _array(value: Any) -> Any:
    """Return an array in the type that JAX gives to the value: Keras, too, makes 32 bits of 64 without a word."""
    return jax.numpy.asarray(value)
