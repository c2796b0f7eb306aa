"""The leaves of a training's state: arrays, whose bytes are sent, and Python values, which are pickled.

Each is restored with its type, which is that of the present leaf, because the structure of a state does not change.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def has_memory(leaf: Any) -> bool:
    """Return whether the leaf is an array whose elements are in its memory."""
    return isinstance(leaf, jax.Array) or (isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject)


def as_array(leaf: Any) -> Any:
    """Return an array of JAX or NumPy as a NumPy array; for keys of `jax.random`, their bits."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def as_leaf(own: Any, came: Any) -> Any:
    """Return a received leaf in the form of the present one.

    Args:
        own: the present leaf.
        came: the received NumPy array or Python value.
    """
    if _is_key(own):
        return jax.random.wrap_key_data(jnp.asarray(came), impl=jax.random.key_impl(own))
    if isinstance(own, jax.Array):
        return jnp.asarray(came)
    if isinstance(own, (bool, int, float, complex)) and isinstance(came, np.ndarray):
        return type(own)(came.item())  # In checkpoints of earlier versions, numbers are arrays.
    return came


def described(leaf: Any) -> str:
    """Return the type and the shape of an array, or the type of a value."""
    if not has_memory(leaf):
        return type(leaf).__name__
    array = as_array(leaf)
    return f"{array.dtype.name}{list(array.shape)}"


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
