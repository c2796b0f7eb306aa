"""JAX's arrays, in the form that the engine uses.

Outside of compiled functions, an array on one CPU device is used in place; any other is copied to host memory, and its
result back to its devices. Such a call waits for its arrays, and for the other ranks. For traced arrays, see
`farandole.jax.traced`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from farandole.errors import InvalidRequestError
from farandole.jax import traced
from farandole.jax.call_site import SCOPE
from farandole.jax.carriers import WIDER, carried, carrier_of, is_carried, is_key, restored
from farandole.numpy.arrays import element_type
from farandole.worker.collectives.compression import NoneCompressor
from farandole.worker.collectives.differentiation import DifferentiableCall
from farandole.worker.collectives.front_end import FrontEnd
from farandole.worker.core.dtype import DType, ElementType, OpaqueType

Array = Any

# The alignment in bytes that XLA requires of memory that it uses without a copy.
_ALIGNMENT = 64
# How to reduce elements with which the engine does not calculate, by the kind of their type.
_INSTEAD = {
    "c": "Pass the real and the imaginary part.",
    "u": "Pass array.astype(jnp.int32).",
    "V": "Pass the array in one of float16, bfloat16, float32.",
}


class Arrays(FrontEnd[Array]):
    """The front end of JAX."""

    scope = SCOPE
    noun = "array"
    requirement = "an array, or what `jax.numpy.asarray` makes one of; of the same element type on all ranks."
    no_compression = NoneCompressor
    converts = True
    has_gradients = True
    has_in_place = False
    several = "all {tensor}s of a structure together"

    def spread(self, given: Any) -> tuple[list[Any], Callable[[Iterable[Array]], Any]]:
        """Return the arrays of a pytree, and a function that makes such a pytree from other arrays."""
        leaves, structure = jax.tree.flatten(given)
        return leaves, structure.unflatten

    def accept(self, given: Any, in_place: bool) -> Array:
        """Convert an argument to an array.

        Raises:
            ValueError: the argument cannot be converted, or would lose bits.
        """
        if isinstance(given, jax.Array):
            return given
        if isinstance(given, (np.ndarray, np.generic)):
            _check_bits(given)
        try:
            return jnp.asarray(given)
        except (TypeError, ValueError):
            raise InvalidRequestError(
                f"farandole.jax takes arrays, but got {type(given).__name__}. A grouped function, such as "
                "hvd.grouped_allreduce(gradients), takes all arrays of a pytree: of lists, tuples and dicts."
            ) from None

    def dtype(self, tensor: Array) -> ElementType:
        """Return the array's element type for the engine.

        Raises:
            ValueError: the engine has no such type, or the array is traced, in a call that does not support it.
        """
        if isinstance(tensor, jax.core.Tracer):
            raise InvalidRequestError(
                "an asynchronous call has a handle, and a function that JAX compiles cannot keep one. Call the plain "
                "function: inside of compiled functions, nothing waits for it until its result is used."
            )
        return self.traced_dtype(tensor)

    def traced_dtype(self, tensor: Array) -> ElementType:
        """Return the same as `dtype`, also for traced arrays."""
        if is_key(tensor):
            return OpaqueType(tensor.dtype.name, tensor.dtype.itemsize)
        wider = WIDER.get(tensor.dtype.name)
        return element_type(np.dtype(tensor.dtype)) if wider is None else OpaqueType(tensor.dtype.name, wider.itemsize)

    def instead_of(self, tensor: Array) -> str:
        """Return a sentence on how such elements can be reduced."""
        if is_key(tensor):
            return "Keys of jax.random can only be moved, as by broadcast."
        return _INSTEAD.get(tensor.dtype.kind, super().instead_of(tensor))

    def type_name(self, tensor: Array) -> str:
        """Return the name of the array's element type."""
        return f"jax.Array of {tensor.dtype}"

    def is_ready(self, tensor: Array) -> bool:
        """Wait for the array, and return whether it is on one CPU device."""
        if is_carried(tensor):
            return False
        if len(tensor.devices()) != 1 or next(iter(tensor.devices())).platform != "cpu":
            return False
        tensor.block_until_ready()
        return True

    def ready_dtype(self, tensor: Array) -> DType | None:
        """Return the array's element type, if it is on one CPU device and not traced."""
        if isinstance(tensor, jax.core.Tracer):
            self.dtype(tensor)
        return super().ready_dtype(tensor)

    def address(self, tensor: Array) -> int:
        """Return the array's address."""
        if isinstance(tensor, np.ndarray):
            return tensor.ctypes.data
        address: int = tensor.unsafe_buffer_pointer()
        return address

    def stage(self, tensor: Array) -> Array:
        """Return the array, or a copy of it in host memory."""
        if isinstance(tensor, jax.core.Tracer):
            self.dtype(tensor)
        return tensor if self.is_ready(tensor) else _to_host(carried(tensor))

    def empty(self, like: Array, shape: Sequence[int]) -> Array:
        """Return a new array, to which the engine writes before any other code has it."""
        inner, dtype = carrier_of(like)
        return _on_cpu(np.empty, (*shape, *inner), dtype)

    def deliver(self, result: Array, like: Array) -> Array:
        """Return the result on the devices of the input."""
        result = restored(result, like)
        if len(like.devices()) == 1 and result.devices() == like.devices():
            return result
        sharding = like.sharding if result.shape == like.shape else next(iter(like.devices()))
        return jax.device_put(result, sharding)

    def assign(self, output: Array, result: Array) -> None:
        """Raise an error: JAX's arrays cannot be overwritten, and no call needs it."""
        raise NotImplementedError

    def copy(self, tensor: Array) -> Array:
        """Return the array itself, because it cannot be overwritten."""
        return tensor

    def zeros(self, like: Array) -> Array:
        """Return zeros of float32."""
        return _on_cpu(np.zeros, (math.prod(like.shape),), np.dtype(np.float32))

    def whole_numbers(self, numbers: Sequence[int], like: object) -> Array:
        """Return an array of int32, or of int64 if that is too small.

        Raises:
            ValueError: int32 is too small, and types of 64 bits are not enabled.
        """
        fits = max(numbers, default=0) <= np.iinfo(np.int32).max
        if not fits and not jax.config.read("jax_enable_x64"):
            raise InvalidRequestError(
                f"JAX cannot hold a number of rows of {max(numbers)}: it has types of 64 bits only where they are "
                "enabled. Call jax.config.update('jax_enable_x64', True) before anything else, or send fewer rows."
            )
        return jnp.asarray(np.array(numbers, dtype=np.int32 if fits else np.int64))

    def is_tracked(self, tensor: Array) -> bool:
        """Return whether the array is traced, for a gradient or to compile a function."""
        return isinstance(tensor, jax.core.Tracer)

    def differentiate(self, call: DifferentiableCall, tensors: Sequence[Array]) -> Sequence[Array]:
        """Add the call to the function that is being traced."""
        return traced.run(self, call, tensors)


def _on_cpu(make: Any, shape: Sequence[int], dtype: Any) -> Array:
    """Return a JAX array in NumPy's memory, which XLA uses without a copy if it is aligned."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = make(size + _ALIGNMENT, dtype=np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    host = memory[begin : begin + size].view(dtype).reshape(shape)
    return jax.device_put(host, jax.local_devices(backend="cpu")[0]).block_until_ready()


def _to_host(array: Array) -> Array:
    """Return a copy on a CPU device, to which only the caller has a reference."""
    return jax.device_put(np.array(array), jax.local_devices(backend="cpu")[0]).block_until_ready()


def _check_bits(given: Any) -> None:
    if jax.config.read("jax_enable_x64") or given.dtype.kind not in "iufc":
        return
    size = 8 if given.dtype.kind == "c" else 4
    if given.dtype.itemsize <= size:
        return
    smaller = np.dtype(f"{given.dtype.kind}{size}")
    raise InvalidRequestError(
        f"JAX would convert this array from {given.dtype} to {smaller}: types of 64 bits must be enabled, on all "
        f"workers. Call jax.config.update('jax_enable_x64', True) before anything else, or pass "
        f"array.astype({smaller.name!r})."
    )
