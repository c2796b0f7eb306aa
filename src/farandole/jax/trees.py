"""The grouped collectives on pytrees, whose arrays travel together."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax

from farandole.collectives.compressed import check_compressible
from farandole.collectives.compression import Int8, Recipe, TopK
from farandole.core.dtype import Kind
from farandole.core.group import ProcessSet
from farandole.errors import InvalidRequestError
from farandole.jax import functions
from farandole.jax.call_site import CallSite
from farandole.jax.primitive import bind
from farandole.jax.traced import group_of


def _on_trees(function: Callable[..., list[Any]]) -> Callable[..., Any]:
    """Return a grouped function that takes arrays in any structure, and returns the results in the same."""

    @wraps(function)
    def run(tensors: Any, *arguments: Any, **options: Any) -> Any:
        leaves, structure = jax.tree.flatten(tensors)
        return jax.tree.unflatten(structure, function(leaves, *arguments, **options) if leaves else [])

    return run


grouped_allgather = _on_trees(functions.grouped_allgather)
grouped_allreduce = _on_trees(functions.grouped_allreduce)
grouped_reducescatter = _on_trees(functions.grouped_reducescatter)


def grouped_allreduce_with_residuals(
    tensors: Any, residuals: Any, recipe: Recipe, op: int, process_set: ProcessSet
) -> tuple[Any, Any]:
    """Return the reductions of a tree, compressed, and what was not sent; eager or in a compiled function.

    Args:
        tensors: arrays in any structure.
        residuals: what of each was not sent before, float32, in the same structure.
        recipe: how they travel.
        op: Average or Sum.
        process_set: which ranks take part.

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
