"""NumPy arrays, in the form that the engine uses.

An array is used in place if it is contiguous, aligned and in the machine's byte order; any other is copied, and for
calls in place the result is copied back.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farandole.errors import InvalidRequestError
from farandole.worker.collectives.compression import NoneCompressor
from farandole.worker.collectives.front_end import FrontEnd
from farandole.worker.core.dtype import DType, ElementType, OpaqueType

Array = NDArray[Any]
_Byte: Any = ctypes.c_char

DTYPES = {
    np.dtype(np.uint8): DType.U8,
    np.dtype(np.int8): DType.I8,
    np.dtype(np.int16): DType.I16,
    np.dtype(np.int32): DType.I32,
    np.dtype(np.int64): DType.I64,
    np.dtype(np.float16): DType.F16,
    np.dtype(np.float32): DType.F32,
    np.dtype(np.float64): DType.F64,
    np.dtype(np.bool_): DType.BOOL,
}
# How to reduce elements with which the engine does not calculate, by the kind of their type.
_INSTEAD = {
    "V": "Pass each field of a structured array by itself.",
    "c": "Pass the real and the imaginary part, as array.view(np.float64) has them for complex128.",
    "u": "Pass array.astype(np.int64).",
    "M": "Pass array.view(np.int64).",
    "m": "Pass array.view(np.int64).",
    "f": "Pass array.astype(np.float64).",
}


class Arrays(FrontEnd[Array]):
    """The front end of NumPy."""

    scope = "numpy."
    noun = "array"
    requirement = "an array, or what `numpy.asarray` makes one of; of the same element type on all ranks."
    no_compression = NoneCompressor
    converts = True

    def accept(self, given: Any, in_place: bool) -> Array:
        """Convert an argument to an array.

        Raises:
            ValueError: the argument cannot be converted, or the call is in place and the array is not writable.
        """
        if in_place:
            _check_writable(given)
        elif type(given) is not np.ndarray and not isinstance(given, np.ma.MaskedArray):
            given = np.asarray(given)
        if isinstance(given, np.ma.MaskedArray):
            raise InvalidRequestError("a masked array cannot be sent with its mask. Pass array.filled(value).")
        array: Array = given
        return array

    def dtype(self, tensor: Array) -> ElementType:
        """Return the array's element type for the engine.

        Raises:
            ValueError: its elements refer to other memory, or have the size 0.
        """
        if tensor.dtype.hasobject:
            raise InvalidRequestError(
                f"Tensor type {self.type_name(tensor)} is not supported. Use broadcast_object or allgather_object for "
                "Python objects."
            )
        return element_type(_native(tensor))

    def instead_of(self, tensor: Array) -> str:
        """Return a sentence on how such elements can be reduced."""
        return _INSTEAD.get(tensor.dtype.kind, super().instead_of(tensor))

    def type_name(self, tensor: Array) -> str:
        """Return the name of the array's element type."""
        return f"numpy.ndarray of {tensor.dtype}"

    def is_ready(self, tensor: Array) -> bool:
        """Return whether the array is contiguous, aligned and in the machine's byte order."""
        flags = tensor.flags
        return flags.c_contiguous and flags.aligned and tensor.dtype.isnative

    def address_if_like(self, tensor: Array, dtype: Any, shape: Any) -> int:
        """Return the address of a ready array of this type and shape that is not read-only, else 0."""
        if type(tensor) is not np.ndarray or tensor.dtype is not dtype or tensor.shape != shape:
            return 0
        try:
            address = ctypes.addressof(_Byte.from_buffer(tensor))
        except (TypeError, ValueError, BufferError):  # It is read-only, empty, or not contiguous.
            return 0
        return 0 if address % tensor.itemsize else address

    def beside(self, tensor: Array, dtype: Any, shape: Any) -> tuple[int, Array, int] | None:
        """Do the same as `FrontEnd.beside`, with fewer Python calls, because every small call needs it."""
        address = self.address_if_like(tensor, dtype, shape)
        if not address:
            return None
        result: Array = np.empty(shape, dtype)
        return address, result, ctypes.addressof(_Byte.from_buffer(result))

    def address(self, tensor: Array) -> int:
        """Return the array's address."""
        try:
            return ctypes.addressof(_Byte.from_buffer(tensor))  # A quarter of what `tensor.ctypes` takes.
        except (TypeError, ValueError, BufferError):  # It is read-only, empty, or of a type of ml_dtypes.
            return tensor.ctypes.data

    def stage(self, tensor: Array) -> Array:
        """Return the array, or a copy that is ready."""
        return tensor if self.is_ready(tensor) else self.copy(tensor)

    def empty(self, like: Array, shape: Sequence[int]) -> Array:
        """Return a new array."""
        return np.empty(shape, dtype=_native(like))

    def empty_like(self, tensor: Array) -> Array:
        """Return a new array of the same shape; a ready array has the machine's byte order."""
        return np.empty_like(tensor, subok=False)

    def deliver(self, result: Array, like: Array) -> Array:
        """Return the array itself."""
        return result

    def assign(self, output: Array, result: Array) -> None:
        """Copy the content, into any memory layout."""
        output[...] = result

    def copy(self, tensor: Array) -> Array:
        """Return a copy that is ready."""
        return np.array(tensor, dtype=_native(tensor), order="C", copy=True)

    def zeros(self, like: Array) -> Array:
        """Return zeros of float32."""
        return np.zeros(math.prod(like.shape), dtype=np.float32)

    def whole_numbers(self, numbers: Sequence[int], like: object) -> Array:
        """Return an array of int32, or of int64 if that is too small."""
        fits = max(numbers, default=0) <= np.iinfo(np.int32).max
        return np.array(numbers, dtype=np.int32 if fits else np.int64)


def element_type(dtype: np.dtype[Any]) -> ElementType:
    """Return the engine's element type for a NumPy type whose elements contain no references.

    Raises:
        ValueError: its elements have the size 0.
    """
    known = DTYPES.get(dtype)
    if known is not None:
        return known
    if dtype.name == "bfloat16":  # That of ml_dtypes, which need not be installed.
        return DType.BF16
    if not dtype.itemsize:
        raise InvalidRequestError(f"elements of type {dtype} have no bytes, so there is nothing to send.")
    # As text, a structured type has all its fields.
    return OpaqueType(str(dtype), dtype.itemsize)


def _native(array: Array) -> np.dtype[Any]:
    return array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")


def _check_writable(given: Any) -> None:
    if not isinstance(given, np.ndarray):
        raise InvalidRequestError(
            f"a call in place writes over a numpy.ndarray, but got {type(given).__name__}. Use the function without "
            "the underscore, which returns a new array."
        )
    if not given.flags.writeable:
        raise InvalidRequestError(
            "the array is read-only, and a call in place writes over it. Use the function without the underscore, "
            "which returns a new array, or pass array.copy()."
        )
