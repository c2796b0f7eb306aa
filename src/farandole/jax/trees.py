"""The grouped collectives on pytrees, whose arrays travel together."""

from __future__ import annotations

from typing import Any, TypeVar

import jax

from farandole.errors import InvalidRequestError
from farandole.jax import functions
from farandole.jax.call_site import CallSite
from farandole.jax.compression import Compression
from farandole.jax.primitive import bind
from farandole.jax.traced import group_of
from farandole.worker.collectives.compressed import check_compressible
from farandole.worker.collectives.compression import Int8, Recipe, TopK
from farandole.worker.core.dtype import Average, Kind
from farandole.worker.core.group import ProcessSet, global_process_set

Tree = TypeVar("Tree")
"""Arrays in any structure of tuples, lists, dicts and whatever JAX knows as a pytree; the result has the same."""


def grouped_allreduce(
    tensors: Tree,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tree:
    """Do what `allreduce` does for all arrays of a structure together; they may differ in shape and type.

    Args:
        tensors: arrays in any structure, the same on all ranks; the results come in the same structure.
        average: Horovod's older word for `op`.
        name: the same on all ranks.
        compression: the form in which the arrays are sent, such as `Compression.fp16`.
        op: Average (default), Sum, Min, Max, Product or Adasum.
        prescale_factor: the factor of the arrays before the reduction.
        postscale_factor: the factor of the results.
        process_set: the ranks that take part.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' arrays do not fit together, or a worker was lost.

    Example:
        >>> gradients = hvd.grouped_allreduce({"w": jnp.ones(3), "b": jnp.zeros(())})
        >>> sorted(gradients)
        ['b', 'w']
    """
    leaves, structure = jax.tree.flatten(tensors)
    options = (average, name, compression, op, prescale_factor, postscale_factor, process_set)
    return _in(structure, functions.grouped_allreduce(leaves, *options) if leaves else [])


def grouped_allgather(tensors: Tree, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tree:
    """Do what `allgather` does for all arrays of a structure together; they may differ in shape and type.

    Args:
        tensors: arrays in any structure, the same on all ranks; the results come in the same structure.
        name: the same on all ranks.
        process_set: the ranks that take part.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' arrays do not fit together, or a worker was lost.
    """
    leaves, structure = jax.tree.flatten(tensors)
    return _in(structure, functions.grouped_allgather(leaves, name, process_set) if leaves else [])


def grouped_reducescatter(
    tensors: Tree,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tree:
    """Do what `reducescatter` does for all arrays of a structure together; they may differ in shape and type.

    Args:
        tensors: arrays in any structure, the same on all ranks; the results come in the same structure.
        name: the same on all ranks.
        compression: the form in which the arrays are sent, such as `Compression.fp16`.
        op: Average (default), Sum, Min, Max or Product.
        process_set: the ranks that take part.
        prescale_factor: the factor of the arrays before the reduction.
        postscale_factor: the factor of the results.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' arrays do not fit together, or a worker was lost.
    """
    leaves, structure = jax.tree.flatten(tensors)
    options = (name, compression, op, process_set, prescale_factor, postscale_factor)
    return _in(structure, functions.grouped_reducescatter(leaves, *options) if leaves else [])


def _in(structure: Any, leaves: list[Any]) -> Any:
    return jax.tree.unflatten(structure, leaves)


def grouped_allreduce_with_residuals(
    tensors: Any, residuals: Any, recipe: Recipe, op: int, process_set: ProcessSet
) -> tuple[Any, Any]:
    """Return the reductions of a tree, compressed, and what was not sent; eager or in a compiled function.

    Args:
        tensors: arrays in any structure.
        residuals: the part of each array that was not sent before, float32, in the same structure.
        recipe: the compression of the arrays.
        op: Average or Sum.
        process_set: the ranks that take part.

    Raises:
        ValueError: such a reduction cannot be compressed so.
    """
    check_compressible(op)
    if not isinstance(recipe, (Int8, TopK)):
        raise InvalidRequestError(f"{recipe!r} cannot be used with JAX.")
    leaves, structure = jax.tree.flatten(tensors)
    site = CallSite(
        kind=Kind.ALLREDUCE,
        grouped=True,
        group=group_of(process_set, "allreduce"),
        size=len(process_set.ranks),
        op=op,
        compression=recipe.form,
        compression_ratio=recipe.ratio,
        has_residuals=True,
    )
    results = bind([*leaves, *jax.tree.leaves(residuals)], site)
    reduced, left = results[: len(leaves)], results[len(leaves) :]
    return jax.tree.unflatten(structure, reduced), jax.tree.unflatten(structure, left)
