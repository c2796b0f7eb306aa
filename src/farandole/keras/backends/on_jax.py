"""Keras with JAX: collectives on arrays in host memory, which a compiled function calls back for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

import farandole.numpy as hvd
from farandole.errors import FarandoleError, InvalidRequestError
from farandole.gradients.wrapper_options import WrapperOptions
from farandole.keras import left_out

compression = hvd.Compression

# XLA hands on an error of a function that it calls as text only.
_last_failure: list[FarandoleError] = []

# A compiled step lives as long as the model, and asks each time it runs.
LEAVES_OUT_BY_ITSELF = True


def check_scope() -> None:
    """JAX has no scope that would be in the way."""


def translate(error: BaseException) -> FarandoleError | None:
    """Return farandole's error for one of JAX's; None if it did not come from a collective."""
    if not isinstance(error, jax.errors.JaxRuntimeError) or not _last_failure:
        return None
    failure = _last_failure[-1]
    return failure if str(failure) in str(error) else None


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
    """Return the reduced gradients; see `farandole.gradients.wrapper_gradients.Backend`."""
    together = [list(range(len(gradients)))] if bundles is None else bundles
    by_type = [
        [index for index in bundle if gradients[index].dtype == kind]
        for bundle in together
        for kind in dict.fromkeys(gradients[index].dtype for index in bundle)
    ]

    def run(*arrays: Any) -> list[Any]:
        results: list[Any] = list(arrays)
        for indices in () if left_out.is_on() else by_type:
            reduced = hvd.grouped_allreduce(
                [np.asarray(arrays[index]) for index in indices],
                compression=options.compression,
                op=op,
                prescale_factor=scales[0],
                postscale_factor=scales[1],
                process_set=options.process_set,
                name=f"{names[indices[0]]}-{len(indices)}",
            )
            for index, result in zip(indices, reduced, strict=True):
                results[index] = result
        return results

    return list(_call(run, *gradients, like=gradients))


def _call(run: Any, *arrays: Any, like: Sequence[Any]) -> Any:
    """Return what a function of arrays returns, also where the arrays are those of a function that is being compiled.

    Args:
        run: gets the arrays, and returns a list.
        arrays: of JAX.
        like: have the shapes and types of the results.
    """
    if not any(isinstance(array, jax.core.Tracer) for array in arrays):
        return [jax.numpy.asarray(result) for result in run(*arrays)]

    def remembering(*given: Any) -> Any:
        try:
            return run(*given)
        except FarandoleError as error:
            _last_failure[:] = [error]
            raise

    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in like]
    # Ordered: all ranks have to make their calls in the same order, and none may be left out or made twice.
    return io_callback(remembering, shapes, *arrays, ordered=True)


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


# --- what users call ---------------------------------------------------------------------------------------------


def allreduce(value: Any, name: str | None, op: int, prescale: float, postscale: float, compression: Any) -> Any:
    """Return the reduction of all ranks' values."""
    value = jax.numpy.asarray(value)

    def run(array: Any) -> list[Any]:
        return [
            hvd.allreduce(
                np.asarray(array),
                name=name,
                op=op,
                prescale_factor=prescale,
                postscale_factor=postscale,
                compression=compression,
            )
        ]

    return _call(run, value, like=[value])[0]


def broadcast(value: Any, root_rank: int, name: str | None) -> Any:
    """Return the root's value."""
    value = jax.numpy.asarray(value)
    return _call(lambda array: [hvd.broadcast(np.asarray(array), root_rank, name=name)], value, like=[value])[0]


def allgather(value: Any, name: str | None) -> Any:
    """Return the rows of all ranks."""
    return jax.numpy.asarray(hvd.allgather(_concrete(value), name=name))


def reducescatter(value: Any, name: str | None, op: int) -> Any:
    """Return this rank's rows of the reduction."""
    return jax.numpy.asarray(hvd.reducescatter(_concrete(value), op=op, name=name))


def _concrete(value: Any) -> Any:
    if isinstance(value, jax.core.Tracer):
        raise InvalidRequestError(
            "this collective cannot be called inside of a function that JAX compiles, as the shape of its result "
            "depends on the other ranks. Call it outside of the function."
        )
    return np.asarray(value)
