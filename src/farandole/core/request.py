"""Native requests made from plain values, and the names of those that the user did not name."""

from __future__ import annotations

import ctypes
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache

from farandole.core.binding import NativeRequest
from farandole.core.dtype import Average, DType, Kind


def make_request(
    kind: Kind,
    name: str,
    *,
    dtype: int = DType.U8,
    op: int = Average,
    group: int = 0,
    root: int = 0,
    shape: Sequence[int] = (),
    prescale: float = 1.0,
    postscale: float = 1.0,
    input: int | None = None,
    output: int | None = None,
) -> NativeRequest:
    """Return a request; `input` and `output` are addresses. See `farandole_request` in farandole.h."""
    ndim = len(shape)
    # By position: a struct made from keywords costs three times as much, and this is on the way of every small tensor.
    return NativeRequest(
        kind, dtype, op, group, root, ndim, _shape_type(ndim)(*shape), prescale, postscale, name.encode(), input, output
    )


@cache
def _shape_type(ndim: int) -> type[ctypes.Array[ctypes.c_int64]]:
    return ctypes.c_int64 * ndim


class Names:
    """Names for unnamed requests.

    Each (operation, group) has its own count, and only unnamed requests count. So a named request, or a request in
    another group, on one rank alone does not shift the names of what follows.
    """

    def __init__(self) -> None:
        self._counts: defaultdict[int, defaultdict[str, Iterator[int]]] = defaultdict(
            lambda: defaultdict(itertools.count)
        )

    def next(self, operation: str, group: int) -> str:
        """Return the next name, without the operation: `noname.7`."""
        return f"noname.{next(self._counts[group][operation])}"

    def restart(self, group: int) -> None:
        """Count from 0 again in a group: its id may have belonged to other ranks before."""
        self._counts.pop(group, None)
