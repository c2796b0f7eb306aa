"""The grouped collectives on pytrees, whose arrays travel together."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax

from farandole.jax import functions


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
