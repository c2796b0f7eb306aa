"""MXNet's engine, by the C API of its library (`mxnet/c_api.h` and `mxnet/engine.h` of 1.9.1, which come with MXNet).

MXNet orders operations by the arrays that each reads and writes. An operation that is *pushed* begins in one of MXNet's
threads as soon as its arrays are free. Later operations on them wait until it reports that it is done, which it may do
in any thread. No thread blocks in between.

MXNet does not check whether an array, or a view of it, occurs twice among the arrays of one operation, which would then
wait for itself forever. So `push` compares arrays by their memory.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from ctypes import CFUNCTYPE, byref, c_bool, c_char_p, c_int, c_int32, c_void_p
from typing import Any, NamedTuple

import mxnet as mx
from mxnet.base import _LIB, check_call

from farandole.errors import LibraryError

# `EngineAsyncFunc`: the context of the run, what to call when the operation is done, and the number that was pushed.
_Start = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)
# What `CallbackOnComplete` calls: the engine, its parameter, and the error or NULL.
_Complete = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)
# `Context`: the CPU, number 0.
_CPU = (c_int32 * 2)(1, 0)
# `FnProperty::kCPUPrioritized`: threads of their own, which take the operation of the highest priority first.
_PRIORITIZED = c_int(3)


class Completion(NamedTuple):
    """The callback that ends an operation: the three words of a `CallbackOnComplete`, which is on MXNet's stack."""

    function: int
    engine: int
    parameter: int

    def __call__(self, error: str | None = None) -> None:
        """Complete the operation; an error is raised at each wait for the arrays that the operation writes."""
        if error is None:
            _Complete(self.function)(self.engine, self.parameter, None)
            return
        # MXNet copies the error, so it must be an object of C++. Its own class adds nothing to std::runtime_error.
        thrown = (c_void_p * 2)()
        _make_error(thrown, error.encode())
        _Complete(self.function)(self.engine, self.parameter, ctypes.addressof(thrown))
        _end_error(thrown)


class Operations:
    """Operations of one kind, which a Python function starts."""

    def __init__(self, name: str, begin: Callable[[int, Completion], None]) -> None:
        """Define the operations.

        Args:
            name: the name of the operation in MXNet's profiles.
            begin: starts the operation of the given number, which ends when its completion is called. It runs in a
                thread of MXNet, must not wait, and must not raise.
        """
        self._name = name.encode()

        def start(_: Any, on_complete: int, number: int) -> None:
            begin(number, Completion(*(word or 0 for word in (c_void_p * 3).from_address(on_complete))))

        self._start = _Start(start)

    def push(self, number: int, reads: Iterable[mx.nd.NDArray], writes: Iterable[mx.nd.NDArray], priority: int) -> None:
        """Make MXNet start an operation when its arrays are free.

        Args:
            number: the number of the operation, above 0.
            reads: the arrays that the operation only reads.
            writes: the arrays that the operation writes.
            priority: of the ready operations, MXNet starts the one with the highest priority first.
        """
        written = {memory_of(array): array.handle for array in writes}
        read = {memory: array.handle for array in reads if (memory := memory_of(array)) not in written}
        check_call(
            _LIB.MXEnginePushAsyncND(
                self._start,
                c_void_p(number),
                None,
                byref(_CPU),
                (c_void_p * len(read))(*read.values()),
                len(read),
                (c_void_p * len(written))(*written.values()),
                len(written),
                byref(_PRIORITIZED),
                c_int(priority),
                c_char_p(self._name),
                c_bool(False),
            )
        )


def is_asynchronous() -> bool:
    """Return whether operations may end later than they begin, which MXNet's NaiveEngine, for debugging, forbids."""
    return os.environ.get("MXNET_ENGINE_TYPE", "") != "NaiveEngine"


# --- arrays ------------------------------------------------------------------------------------------------------


class LayoutError(ValueError):
    """The array has oneDNN's layout for convolutions, not row-major order."""


def memory_of(array: mx.nd.NDArray) -> int:
    """Return a number that is the same for all arrays that share memory: the first word of an NDArray points to it."""
    return c_void_p.from_address(array.handle.value).value or 0


def address(array: mx.nd.NDArray) -> int:
    """Return the address of an array's elements. No operation may be writing to it.

    Raises:
        LayoutError: the elements are not in row-major order.
    """
    if array.size == 0:
        return 0
    described = c_void_p()
    # MXNDArrayGetData would change the layout, and wait for this: in an operation on the array, forever.
    if _LIB.MXNDArrayToDLPack(array.handle, byref(described)):
        raise LayoutError(
            "the array is in oneDNN's layout for convolutions, and cannot be overwritten there. Use the function "
            "without the underscore, which returns a new array."
        )
    # The first field of a DLManagedTensor is the address.
    begin = c_void_p.from_address(described.value or 0).value
    check_call(_LIB.MXNDArrayCallDLPackDeleter(described))
    return begin or 0


def lay_out_plainly(array: mx.nd.NDArray) -> None:
    """Wait for an array, and convert it in place to row-major order."""
    array.wait_to_read()
    if array.size:
        check_call(_LIB.MXNDArrayGetData(array.handle, byref(c_void_p())))


def _check_memory_of() -> None:
    one, other = mx.nd.empty((2,)), mx.nd.empty((2,))
    if memory_of(one) != memory_of(one[0:1]) or memory_of(one) == memory_of(other):
        raise LibraryError(
            f"farandole.mxnet needs the memory layout of MXNet 1.9.1, and that of MXNet {mx.__version__} differs. "
            "Install mxnet==1.9.1."
        )


_cpp = ctypes.CDLL("libstdc++.so.6")  # libmxnet also needs it.
# std::runtime_error's constructor from a text, and its destructor.
_make_error = _cpp["_ZNSt13runtime_errorC1EPKc"]
_make_error.restype, _make_error.argtypes = None, (c_void_p, c_char_p)
_end_error = _cpp["_ZNSt13runtime_errorD1Ev"]
_end_error.restype, _end_error.argtypes = None, (c_void_p,)
_check_memory_of()
