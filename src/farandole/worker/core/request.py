"""Native requests made from plain values, and names for those that the user has not named."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Sequence
from functools import cache
from typing import Protocol

from farandole.base.request_kind import Kind
from farandole.worker.core.binding import NativeRequest
from farandole.worker.core.dtype import DType, ElementType, OpaqueType
from farandole.worker.core.gpu_stream import GpuStream
from farandole.worker.core.request_options import native_options

# `farandole_memory`.
MEMORY_DEVICE = 1


def make_request(
    kind: Kind,
    name: str,
    *,
    dtype: ElementType = DType.U8,
    group: int = 0,
    shape: Sequence[int] = (),
    input: int | None = None,
    output: int | None = None,
    splits: Sequence[int] | None = None,
    residual: int | None = None,
    stream: GpuStream | None = None,
    **options: float,
) -> NativeRequest:
    """Return a native request, as `farandole_request` in farandole.h describes it.

    Args:
        kind: the kind of request.
        name: the name by which the requests of all ranks are matched.
        dtype: the element type.
        group: the native number of the process set.
        shape: the shape of the input.
        input: its address.
        output: the address of the output.
        splits: the rows for each member, for an alltoall only.
        residual: the address of the residual, for a compressed allreduce only.
        stream: the stream in which the input is computed, if input and output are in the memory of a GPU.
        options: further options; the engine knows which options the kind has (`farandole_option`).
    """
    ndim = len(shape)
    if stream is not None:
        options["memory"] = MEMORY_DEVICE
    native = native_options(options) if options else None
    # It stands for the number, whatever that is.
    opaque = dtype if isinstance(dtype, OpaqueType) else None
    # By position: a struct made from keywords costs three times as much, and every small tensor comes here.
    request = NativeRequest(
        kind,
        DType.U8 if opaque is not None else dtype,
        group,
        ndim,
        _array_type(ndim)(*shape),
        name.encode(),
        input,
        output,
        None if native is None else native.array,
        0 if native is None else native.count,
        None if splits is None else _array_type(len(splits))(*splits),
        residual,
        None if opaque is None else opaque.name.encode(),
        0 if opaque is None else opaque.size,
    )
    if stream is not None:
        request.device, request.stream = stream
    return request


@cache
def _array_type(count: int) -> type[ctypes.Array[ctypes.c_int64]]:
    return ctypes.c_int64 * count


# Names that recur do so after this many calls. A program whose number of unnamed calls in an iteration divides it gives
# each name to the same call every time, and it has many divisors. If more calls than that are in flight, the engine
# makes them in turn. Calls are quick only when each name has come once, so it is not larger.
RECURRING_NAMES = 120


class NamesFollower(Protocol):
    """A separate counter of unnamed requests, such as that of a framework's ops."""

    def restarted(self, group: int) -> None:
        """Count from 0 again in a group."""

    def restarted_all(self, restarts: int) -> None:
        """Count from 0 again everywhere, after this many restarts; names differ from those of the last one."""


class Numbers:
    """The numbers of the unnamed requests of one operation in one group. Any thread may take one."""

    __slots__ = ("_given_back", "_next")

    def __init__(self) -> None:
        # Without a lock: `next`, `pop` and `append` are atomic.
        self._next = itertools.count()
        self._given_back: list[int] = []

    def take(self) -> int:
        """Return the next number."""
        if self._given_back:
            with contextlib.suppress(IndexError):  # Another thread was quicker.
                return self._given_back.pop()
        return next(self._next)

    def give_back(self, number: int) -> None:
        """Make a number the next one again, because its request was refused: the other ranks do not count it."""
        self._given_back.append(number)


class Names:
    """Names for unnamed requests.

    Each (operation, group) has its own numbers, and only unnamed requests that were accepted count. So a named request,
    a request in another group or a refused one does not shift later names if only one rank makes it.

    A call whose requests are all submitted at once, in the order of the program, has a name that recurs: the engine
    agrees on a name that it knows without messages. Its requests must be made in turn (`Submission.make_in_turn`).
    Every other call has a name of its own.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int], Numbers] = {}
        self._followers: list[NamesFollower] = []
        self._begin_at(0)

    def follow(self, follower: NamesFollower) -> None:
        """Make another counter of unnamed requests restart together with these names."""
        self._followers.append(follower)

    def numbers(self, operation: str, group: int) -> Numbers:
        """Return the numbers of an operation in a group."""
        key = (operation, group)
        return self._numbers.get(key) or self._numbers.setdefault(key, Numbers())

    def name(self, number: int, recurs: bool) -> str:
        """Return the name of a number, without the operation: `noname.7`."""
        return self._recurring[number % RECURRING_NAMES] if recurs else f"{self._begin}{number}"

    def next(self, operation: str, group: int) -> str:
        """Return the next name that does not recur."""
        return self.name(self.numbers(operation, group).take(), recurs=False)

    def restart(self, group: int) -> None:
        """Count from 0 again in a group: its id may have belonged to other ranks before."""
        self._numbers = {key: numbers for key, numbers in self._numbers.copy().items() if key[1] != group}
        for follower in self._followers:
            follower.restarted(group)

    def restart_all(self) -> None:
        """Count from 0 again everywhere, with names that are not in flight: earlier requests may still be.

        All ranks do so after a join, at the same point of their programs.
        """
        self._restart_all(self._restarts + 1)

    def enter_world(self) -> None:
        """Count as in a new world, because some of its ranks may not have been in a world before."""
        self._restart_all(0)

    def _restart_all(self, restarts: int) -> None:
        self._numbers = {}
        self._begin_at(restarts)
        for follower in self._followers:
            follower.restarted_all(restarts)

    def _begin_at(self, restarts: int) -> None:
        self._restarts = restarts
        self._begin = f"noname.{restarts}." if restarts else "noname."
        # The requests of before a join are done by the end of the next one, so two sets of names are enough.
        begin = "noname.1." if restarts % 2 else "noname."
        self._recurring = [f"{begin}{number}" for number in range(RECURRING_NAMES)]
