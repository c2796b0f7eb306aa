"""Arrays that are sent in another form, because the engine has no access to their memory: keys, and packed elements."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = Any

# Types of which XLA packs several elements into a byte, and the type in which they are sent.
WIDER = {
    "int2": np.dtype(np.int8),
    "int4": np.dtype(np.int8),
    "uint2": np.dtype(np.uint8),
    "uint4": np.dtype(np.uint8),
    "float4_e2m1fn": np.dtype(jnp.bfloat16),
}


def is_key(array: Array) -> bool:
    """Return whether an array consists of jax.random keys."""
    return bool(jnp.issubdtype(array.dtype, jax.dtypes.prng_key))


def is_carried(array: Array) -> bool:
    """Return whether an array is sent in another form, because the engine has no access to its memory."""
    return is_key(array) or array.dtype.name in WIDER


def carrier_of(array: Array) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the dimensions and the type in which an element of an array is sent."""
    if is_key(array):
        data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), array.dtype))
        return tuple(data.shape), np.dtype(data.dtype)
    return (), WIDER.get(array.dtype.name, np.dtype(array.dtype))


def carried(array: Array) -> Array:
    """Return the array to send: for keys their data, for elements of less than a byte wider ones."""
    if is_key(array):
        return jax.random.key_data(array)
    wider = WIDER.get(array.dtype.name)
    return array if wider is None else array.astype(wider)


def restored(array: Array, like: Array) -> Array:
    """Return the array that was sent as `array`, with the type of `like`."""
    if is_key(like):
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(like))
    return array.astype(like.dtype) if like.dtype.name in WIDER else array
