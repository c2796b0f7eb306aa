"""The memory that one call shares with the native engine: an array of requests, and an array of their handles.

Making these arrays costs more than a small collective, so they are reused: a `Single` is one request, overwritten for
each call; a `Series` is many requests with fixed shapes, of which each call writes whole columns at once. A submission
belongs to one call at a time; unused ones are in a `SubmissionPool`.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from array import array
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from itertools import accumulate

from farandole.worker.core.binding import NativeRequest
from farandole.worker.core.request_options import NativeOptions, native_options

# A request in words of 8 bytes: one field of all requests of an array is a slice with this step.
_WORD = 8
_STEP = ctypes.sizeof(NativeRequest) // _WORD
# The fields from `kind` to `option_count`. Those after it stay zero.
_FIELDS = struct.Struct("@IIIIPPPPPN")

_OneRequest = NativeRequest * 1

_NO_OPTIONS = native_options({})


def _column(field: str) -> slice:
    return slice(getattr(NativeRequest, field).offset // _WORD, None, _STEP)


_NAME, _INPUT, _OUTPUT = _column("name"), _column("input"), _column("output")
INPUT_WORD, OUTPUT_WORD = _INPUT.start, _OUTPUT.start
_OPTIONS, _OPTION_COUNT = _column("options"), _column("option_count")


class Submission:
    """Requests that are submitted together.

    Attributes:
        count: their number, at least one.
        requests: their native array.
        handles: the native array of their handles. The first one is 0 unless the requests are submitted.
        in_turn: whether requests wait for earlier ones of their names, instead of being refused while these are in
            flight.
    """

    __slots__ = ("count", "handles", "in_turn", "requests")

    def __init__(self, requests: Sequence[NativeRequest]) -> None:
        """Copy requests into an array, which keeps the memory alive that they point to."""
        self._hold((NativeRequest * len(requests))(*requests))

    def _hold(self, requests: ctypes.Array[NativeRequest]) -> None:
        self.count, self.requests, self.in_turn = len(requests), requests, False
        self.handles = (ctypes.c_uint64 * self.count)()

    @classmethod
    def joined(cls, parts: Sequence[Submission]) -> Submission:
        """Return a submission of the requests of all parts, which must be kept: they own the requests' memory."""
        whole = cls.__new__(cls)
        everything = b"".join([part.requests for part in parts])
        whole._hold((NativeRequest * sum(part.count for part in parts)).from_buffer_copy(everything))
        return whole

    def make_in_turn(self, in_turn: bool = True) -> None:
        """Set `in_turn`, before the requests are submitted."""
        self.in_turn = in_turn
        for request in self.requests:
            request.in_turn = in_turn

    @property
    def submitted(self) -> bool:
        """Return whether the engine knows the requests."""
        return self.handles[0] != 0

    def put_back(self) -> None:
        """Return it to its pool, if it has one. Its requests must be done and released; do not use it afterwards."""


class Single(Submission):
    """One request, overwritten for each call.

    Attributes:
        name_bytes: the maximum length of a name, in bytes.
        ndim: the maximum number of dimensions.
        words: the request in words of 8 bytes; those at `INPUT_WORD` and `OUTPUT_WORD` are addresses.
    """

    __slots__ = (
        "_name",
        "_name_address",
        "_options",
        "_pool",
        "_shape",
        "_shape_address",
        "_written_shape",
        "name_bytes",
        "ndim",
        "words",
    )

    def __init__(self, pool: SubmissionPool, name_bytes: int = 120, ndim: int = 8) -> None:
        """Allocate room for names and shapes up to these lengths."""
        self._hold(_OneRequest())  # To copy a request into an array takes longer than all the rest.
        self._pool = pool
        self.words = memoryview(self.requests).cast("B").cast("Q")
        self.name_bytes, self.ndim = name_bytes, ndim
        self._name = ctypes.create_string_buffer(name_bytes + 1)
        self._name_address = ctypes.addressof(self._name)
        self._shape = (ctypes.c_int64 * ndim)()
        self._written_shape: Sequence[int] = ()
        self._shape_address = ctypes.addressof(self._shape)
        self._options = _NO_OPTIONS

    def fill(
        self,
        kind: int,
        dtype: int,
        group: int,
        shape: Sequence[int],
        name: bytes,
        input: int,
        output: int,
        options: NativeOptions,
    ) -> None:
        """Write the request that `make_request` describes; `input` and `output` are addresses, or 0 for none."""
        ndim = len(shape)
        self._options = options
        if shape != self._written_shape:  # Mostly the shape of the previous call.
            _shape_of(ndim).pack_into(self._shape, 0, *shape)
            self._written_shape = tuple(shape)
        self._name.value = name
        _FIELDS.pack_into(
            self.requests,
            0,
            kind,
            dtype,
            group,
            ndim,
            self._shape_address,
            self._name_address,
            input,
            output,
            options.address,
            options.count,
        )

    def put_back(self) -> None:
        """Return it to its pool."""
        self._pool.put_single(self)


class Series(Submission):
    """Requests whose kind, group, element types and shapes do not change."""

    __slots__ = ("_head_bytes", "_key", "_names", "_options", "_pool", "_suffixes", "_words")

    def __init__(self, pool: SubmissionPool, key: Hashable, requests: Sequence[NativeRequest]) -> None:
        """Copy requests into an array. Every call sets their names, options and addresses.

        Args:
            pool: the pool that it returns to between calls.
            key: its key in the pool, which stands for everything that does not change.
            requests: the requests, at least one.
        """
        super().__init__(requests)
        self._pool, self._key = pool, key
        self._words = memoryview(self.requests).cast("B").cast("Q")
        self._options = _NO_OPTIONS
        self._suffixes = [f"_{number}of{self.count}\0" for number in range(1, self.count + 1)]
        self._head_bytes = -1

    def name(self, head: str) -> None:
        """Name the requests `<head>_1of3` and so on."""
        # All names are one text, joined at C's speed. Their positions in it change only with the length of the head.
        text = "".join([head, head.join(self._suffixes)]).encode()
        head_bytes = len(head.encode())
        if head_bytes != self._head_bytes:
            self._head_bytes = head_bytes
            self._names = ctypes.create_string_buffer(len(text))
            lengths = (head_bytes + len(suffix) for suffix in self._suffixes[:-1])
            begins = accumulate(lengths, initial=ctypes.addressof(self._names))
            self._words[_NAME] = array("Q", begins)
        ctypes.memmove(self._names, text, len(text))

    def ask_for(self, options: NativeOptions) -> None:
        """Set the options, which are the same for all requests."""
        if options is not self._options:
            self._options = options
            self._words[_OPTIONS] = array("Q", (options.address,)) * self.count
            self._words[_OPTION_COUNT] = array("Q", (options.count,)) * self.count

    def place(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Set the addresses of inputs and outputs."""
        self._words[_INPUT] = array("Q", inputs)
        self._words[_OUTPUT] = array("Q", outputs)

    def put_back(self) -> None:
        """Return it to its pool."""
        self._pool.put_series(self._key, self)


class SubmissionPool:
    """Submissions that no call uses at present. Any thread may take or return one."""

    # More singles, and more requests in series, are not kept: their shapes may never recur.
    MOST_SINGLES = 4096
    MOST_IN_SERIES = 1 << 15

    def __init__(self) -> None:
        # Without a lock: `pop` and `append` of a list are atomic.
        self._singles: list[Single] = []
        self._series: dict[Hashable, list[Series]] = {}
        self._in_series = 0
        self._lock = threading.Lock()

    def single(self, name: bytes, shape: Sequence[int]) -> Single:
        """Take or make a request with room for this name and shape."""
        try:
            single = self._singles.pop()
        except IndexError:
            single = Single(self)
        if len(name) <= single.name_bytes and len(shape) <= single.ndim:
            return single
        return Single(self, len(name), len(shape))

    def put_single(self, single: Single) -> None:
        """Return a request that is done and released."""
        if single.in_turn:
            single.make_in_turn(False)
        if len(self._singles) < self.MOST_SINGLES:
            self._singles.append(single)

    def series(self, key: Hashable, make: Callable[[], Sequence[NativeRequest]]) -> Series:
        """Take a series with this key or, if there is none, make one from new requests."""
        with self._lock:
            kept = self._series.get(key)
            if kept:
                series = kept.pop()
                self._in_series -= series.count
                return series
        return Series(self, key, make())

    def put_series(self, key: Hashable, series: Series) -> None:
        """Return a series whose requests are done and released."""
        if series.in_turn:
            series.make_in_turn(False)
        with self._lock:
            if self._in_series + series.count > self.MOST_IN_SERIES:
                self._series.clear()
                self._in_series = 0
            self._in_series += series.count
            self._series.setdefault(key, []).append(series)


@cache
def _shape_of(ndim: int) -> struct.Struct:
    return struct.Struct(f"@{ndim}q")
