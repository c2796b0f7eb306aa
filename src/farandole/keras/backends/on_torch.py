"""Keras with PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import torch

import farandole.torch as hvd
from farandole.errors import FarandoleError
from farandole.worker.gradients.wrapper_options import WrapperOptions

compression = hvd.Compression


def check_scope() -> None:
    """PyTorch has no scope that would be in the way."""


def translate(error: BaseException) -> FarandoleError | None:
    """Return farandole's error for one of the backend's: collectives raise it as it is."""
    return None


def as_it_is(function: Any) -> Any:
    """Return a function of ours so that the backend does not rewrite it within functions of the user's."""
    return function


def dense(gradient: Any) -> Any:
    """Return a gradient as a tensor of all its elements."""
    return gradient.to_dense() if gradient.is_sparse else gradient


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
    given = [dense(gradient) for gradient in gradients]
    results: list[Any] = [None] * len(given)
    for bundle in [list(range(len(given)))] if bundles is None else bundles:
        for kind in dict.fromkeys(given[index].dtype for index in bundle):
            same_type = [index for index in bundle if given[index].dtype == kind]
            with torch.no_grad():
                reduced = hvd.grouped_allreduce(
                    [given[index] for index in same_type],
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
    return torch.zeros(0, dtype=variable.value.dtype)


def after(gradient: Any, results: Sequence[Any]) -> Any:
    """Return the gradient: no call is left out here."""
    return gradient


def run_anyway(results: Sequence[Any]) -> None:
    """Do nothing: no call is left out here."""


# --- what users call ---------------------------------------------------------------------------------------------


def allreduce(value: Any, name: str | None, op: int, prescale: float, postscale: float, compression: Any) -> Any:
    """Return the reduction of all ranks' values."""
    return hvd.allreduce(
        _tensor(value),
        name=name,
        op=op,
        prescale_factor=prescale,
        postscale_factor=postscale,
        compression=compression,
    )


def allgather(value: Any, name: str | None) -> Any:
    """Return the rows of all ranks."""
    return hvd.allgather(_tensor(value), name=name)


def broadcast(value: Any, root_rank: int, name: str | None) -> Any:
    """Return the root's value."""
    return hvd.broadcast(_tensor(value), root_rank, name=name)


def reducescatter(value: Any, name: str | None, op: int) -> Any:
    """Return this rank's rows of the reduction."""
    return hvd.reducescatter(_tensor(value), op=op, name=name)


def _tensor(value: Any) -> torch.Tensor:
    return torch.as_tensor(value.value if isinstance(value, keras.Variable) else value)
