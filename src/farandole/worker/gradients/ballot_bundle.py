"""The ballot of a step, a rank's requests to all ranks when the step counts, in the form of another gradient.

It has the element type and the operation of the gradients, so that it is sent in one bucket with them. Each request is
an element that the reduction does not change if no rank makes the request, and changes if any does.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import NamedTuple

from farandole.worker.core.dtype import DType, Min, Product
from farandole.worker.core.session import Session
from farandole.worker.core.submission import Submission
from farandole.worker.gradients.entry import Bundle
from farandole.worker.gradients.reduce_options import ReduceOptions
from farandole.worker.gradients.requests import request_of


class _Format(NamedTuple):
    """The encoding of an element type in memory."""

    code: str
    """The format character of the struct module."""
    one: float
    """1.0 as a value of that format."""


# There is no code for bfloat16, whose elements are the upper halves of float32's.
_FORMATS = {
    DType.F16: _Format("e", 1.0),
    DType.BF16: _Format("H", 0x3F80),
    DType.F32: _Format("f", 1.0),
    DType.F64: _Format("d", 1.0),
}
_BF16_MINUS_ZERO = 0x8000


class BallotBundle(Bundle):
    """A bundle that contains the ballot, and no gradients."""

    __slots__ = ("_asked", "_dtype", "_format", "_name", "_of_all", "_of_this_rank", "_options", "_silence")

    def __init__(self, name: str, dtype: DType | None, options: ReduceOptions) -> None:
        """Create a ballot that is sent with gradients.

        Args:
            name: the name of its request, the same on all ranks.
            dtype: the element type of the gradients, so that the ballot shares their bucket; if they are not
                floating-point numbers, float32 is used.
            options: the options of the reduction.
        """
        super().__init__(())
        self._name = name
        self._dtype = dtype if dtype in _FORMATS else DType.F32
        self._format = _FORMATS[self._dtype]
        self._options = options
        # Zero stays zero in sums, one in products.
        self._silence = self._format.one if options.op in (Min, Product) else 0
        self._asked: Sequence[bool] = ()
        self._of_this_rank = self._of_all = (ctypes.c_char * 0)()

    def fill_in(self, session: Session, asked: Sequence[bool]) -> None:
        """Write this rank's requests."""
        if self.submission is None:
            self._prepare(session, len(asked))
            self._write((False,) * len(asked))
        if asked != self._asked:
            self._write(asked)

    @property
    def outcome(self) -> list[bool]:
        """The requests of all ranks together, once the ballot has been reduced."""
        values = struct.unpack(self._code(len(self._asked)), self._of_all)
        if self._dtype == DType.BF16:
            values = tuple(0 if value == _BF16_MINUS_ZERO else value for value in values)
        return [value != self._silence for value in values]

    def _write(self, asked: Sequence[bool]) -> None:
        self._asked = asked
        loud = self._format.one - self._silence
        values = [loud if is_asked else self._silence for is_asked in asked]
        struct.pack_into(self._code(len(asked)), self._of_this_rank, 0, *values)

    def _prepare(self, session: Session, questions: int) -> None:
        self.nbytes = struct.calcsize(self._code(questions))
        self._of_this_rank, self._of_all = ((ctypes.c_char * self.nbytes)() for _ in range(2))
        addresses = ctypes.addressof(self._of_this_rank), ctypes.addressof(self._of_all)
        request = request_of(self._name, self._dtype, (questions,), *addresses, self._options, session)
        self.submission = Submission([request])

    def _code(self, count: int) -> str:
        return f"={count}{self._format.code}"
