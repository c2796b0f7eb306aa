"""The kinds of request: their numbers in the C ABI, and what callers must know of each."""

from __future__ import annotations

from enum import IntEnum


class Rows(IntEnum):
    """The rows of a tensor's result (`enum farandole_rows`)."""

    SAME = 0
    """As many as the input has."""
    SHARED = 1
    """This rank's share of as many; the first ranks get one more."""
    GATHERED = 2
    """The rows of all ranks."""
    EXCHANGED = 3
    """The rows that each rank has for this one."""


class Kind(IntEnum):
    """Kinds of request (`enum farandole_kind`).

    Attributes:
        rows: the rows of the result; None if the kind is not a collective of tensors.
        reduces: whether it calculates with the elements; other kinds move them as they are.
        has_root: whether one rank, the option `root`, has a part of its own.
    """

    rows: Rows | None
    reduces: bool
    has_root: bool

    def __new__(cls, number: int, rows: Rows | None = None, reduces: bool = False, has_root: bool = False) -> Kind:
        """Make the member with this number."""
        kind = int.__new__(cls, number)
        kind._value_ = number
        kind.rows, kind.reduces, kind.has_root = rows, reduces, has_root
        return kind

    # Number, rows, reduces, has_root.
    ALLREDUCE = 0, Rows.SAME, True
    ALLGATHER = 1, Rows.GATHERED
    BROADCAST = 2, Rows.SAME, False, True
    BARRIER = 3
    ADD_GROUP = 4
    REMOVE_GROUP = 5
    ALLTOALL = 6, Rows.EXCHANGED
    REDUCESCATTER = 7, Rows.SHARED, True
    JOIN = 8
    TRANSFER = 9
    REDUCE = 10, Rows.SAME, True, True

    @property
    def function(self) -> str:
        """The name of a collective's plain function.

        Example:
            >>> Kind.ALLREDUCE.function
            'allreduce'
        """
        return self.name.lower()


COLLECTIVE_KINDS = {kind.function: kind for kind in Kind if kind.rows is not None}
"""The collectives of tensors, by the name of their function."""
