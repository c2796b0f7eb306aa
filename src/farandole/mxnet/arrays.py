"""MXNet's arrays, in the form that the engine uses: dense ones, in host memory.

A call that is not in place copies its inputs, and overwrites the copies with its result. MXNet copies them, in its
order, and converts arrays in a layout of oneDNN (results of convolutions) to row-major order. A call in place uses the
arrays themselves.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
import numpy as np

from farandole.errors import InvalidRequestError
from farandole.mxnet.calls import OrderedCall, WaitedCall
from farandole.mxnet.dialect import MXNetDialect
from farandole.mxnet.mxnet_engine import address, is_asynchronous
from farandole.mxnet.refusals import check
from farandole.mxnet.sent import Sent
from farandole.numpy.arrays import element_type
from farandole.worker.collectives.all_collectives import COLLECTIVES
from farandole.worker.collectives.front_end import FrontEnd
from farandole.worker.core.binding import NativeRequest
from farandole.worker.core.dtype import ElementType
from farandole.worker.core.handle import Call
from farandole.worker.core.session import Session

# Kinds whose result has a shape that is known only when it has come.
_RECEIVED = frozenset(each.kind for each in COLLECTIVES.values() if each.receives_rows)
_HOST = frozenset(("cpu", "cpu_pinned", "cpu_shared"))


class Arrays(MXNetDialect, FrontEnd[Sent]):
    """The front end of MXNet."""

    scope = "mxnet."
    submits_in_order = False  # MXNet's engine makes them when their arrays are ready.

    def dtype(self, tensor: Sent) -> ElementType:
        """Return the array's element type for the engine.

        Raises:
            ValueError: the array cannot be sent.
        """
        array = tensor.array
        if not isinstance(array, mx.nd.NDArray):
            raise InvalidRequestError(
                f"farandole.mxnet takes arrays of MXNet, but got {type(array).__name__}. Pass mx.nd.array(value)."
            )
        if array.stype != "default":
            raise InvalidRequestError(
                f"a sparse array ({array.stype}) cannot be sent. Pass array.tostype('default'); a gluon layer has "
                "dense gradients with sparse_grad=False."
            )
        if array.context.device_type not in _HOST:
            raise InvalidRequestError(
                f"the array is on {array.context}, and farandole.mxnet takes arrays in host memory. Pass "
                "array.as_in_context(mx.cpu())."
            )
        return element_type(np.dtype(array.dtype))

    def instead_of(self, tensor: Sent) -> str:
        """Return a sentence on how such elements can be reduced."""
        return "Pass array.astype('float32')."

    def type_name(self, tensor: Sent) -> str:
        """Return the name of the array's element type."""
        return f"mxnet.NDArray of {np.dtype(tensor.dtype).name}"

    def is_ready(self, tensor: Sent) -> bool:
        """Return False: MXNet's engine decides when an array is ready."""
        return False

    def address(self, tensor: Sent) -> int:
        """Return the array's address, if it is known before the call begins."""
        return tensor.memory

    def stage(self, tensor: Sent) -> Sent:
        """Return the array if the result should overwrite it, else a copy that MXNet makes."""
        return tensor if tensor.in_place else Sent(copied(tensor.array), tensor.priority)

    def empty(self, like: Sent, shape: Sequence[int]) -> Sent:
        """Return a new array, of the same class (`nd` or `np`) as the other one."""
        with mx.util.np_shape(True):  # Without it, 0 stands for a length that is not known.
            array = mx.nd.empty(tuple(shape), dtype=like.dtype)
        if isinstance(like.array, mx.np.ndarray):
            array = array.as_np_ndarray()
        return Sent(array, memory=address(array))

    def deliver(self, result: Sent, like: Sent) -> Sent:
        """Return the array itself."""
        return result

    def assign(self, output: Sent, result: Sent) -> None:
        """Make MXNet copy the content."""
        result.array.copyto(output.array)

    def copy(self, tensor: Sent) -> Sent:
        """Return a copy, which MXNet makes."""
        return Sent(copied(tensor.array), tensor.priority)

    def zeros(self, like: Sent) -> Sent:
        """Return zeros of float32."""
        array = mx.nd.empty((max(1, math.prod(like.shape)),), dtype="float32")
        ctypes.memset(address(array), 0, array.size * 4)
        return Sent(array, memory=address(array))

    def whole_numbers(self, numbers: Sequence[int], like: object) -> Sent:
        """Return an array of int32, or of int64 if that is too small."""
        fits = max(numbers, default=0) <= np.iinfo(np.int32).max
        return Sent(mx.nd.array(list(numbers), dtype="int32" if fits else "int64"))

    def call_of(
        self,
        session: Session,
        requests: Sequence[NativeRequest],
        ready: Sequence[Sent],
        finish: Callable[[Sequence[int]], Any],
    ) -> Call:
        """Return a call that MXNet's engine orders.

        Raises:
            ValueError: the engine would refuse the call.
        """
        check(session, requests)
        received = requests[0].kind in _RECEIVED
        if received or not is_asynchronous():
            return WaitedCall(session.engine, requests, ready, finish, has_outputs=not received)
        return OrderedCall(session.engine, requests, ready, finish)


def copied(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return a copy in row-major order, which MXNet makes."""
    if array.size and array.shape:
        return array.copy()
    with mx.util.np_shape(True):
        return array.copy()
