"""Pytrees of arrays that are reduced together, and the compressed reduction, which returns residuals."""

from __future__ import annotations

from typing import Any, TypeVar

import jax

from farandole.base.request_kind import Kind
from farandole.errors import InvalidRequestError
from farandole.jax.call_site import CallSite
from farandole.jax.primitive import bind
from farandole.jax.traced import group_of
from farandole.worker.collectives.compressed import check_compressible
from farandole.worker.collectives.compression import Int8, Recipe, TopK
from farandole.worker.core.group import ProcessSet

Tree = TypeVar("Tree")
"""Arrays in any structure that is a pytree for JAX, such as tuples, lists and dicts; the result has the same
structure."""


def grouped_allreduce_with_residuals(
    tensors: Any, residuals: Any, recipe: Recipe, op: int, process_set: ProcessSet
) -> tuple[Any, Any]:
    """Reduce a compressed tree, and return the result and the residuals; eagerly or in a compiled function.

    Args:
        tensors: arrays in any structure.
        residuals: the previously unsent part of each array, float32, in the same structure.
        recipe: the compression of the arrays.
        op: Average or Sum.
        process_set: the ranks that take part.

    Raises:
        ValueError: this compression does not support such a reduction.
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
