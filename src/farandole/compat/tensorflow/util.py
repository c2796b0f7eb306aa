"""`horovod.tensorflow.util`: small helpers for graphs and variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Return whether ops run as soon as they are called."""
    return bool(tf.executing_eagerly())


def _make_subgraph(f: Callable[..., Any]) -> Any:
    """Compile a function to a graph."""
    return tf.function(f)


def _cache(f: Callable[..., Any]) -> Callable[..., Any]:
    """Cache a function's results by its arguments, separately for eager mode and for graphs."""
    results: dict[Any, Any] = {}

    def cached(*args: Any) -> Any:
        key = (args, _executing_eagerly())
        if key not in results:
            results[key] = f(*args)
        return results[key]

    return cached


def vars_to_refs(vars: Any) -> Any:
    """Return hashable references to variables, in the same nested structure.

    Example:
        >>> refs_to_vars(vars_to_refs([tf.Variable(1.0)]))[0].numpy().item()
        1.0
    """
    return tuple(map(vars_to_refs, vars)) if isinstance(vars, list) else vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """Return the variables of the references that `vars_to_refs` returned."""
    return list(map(refs_to_vars, refs)) if isinstance(refs, tuple) else refs.deref()
