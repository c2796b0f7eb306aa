"""The table of a world: what the roster announces to all of its workers alike, as a whole or as a change.

A table has a line for each worker, so the bytes of a table for each of them grow with the square of their number. Most
lines are those of the world before: survivors keep their order and their contacts, and newcomers come last. So a worker
that has the table before gets only the ranks that were kept, and the lines of newcomers.

Tables are identified by the digest of their encoding. A worker sends the digest of its table when it joins, and gets a
change only if the roster has the same table. If not, for example because a roster was replaced by another one, or an
answer was lost, the worker gets the whole table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import TypeVar

import msgspec

from farandole.base.wire.encoding import decode, encode

T = TypeVar("T")
Run = tuple[int, int]
"""The first of some successive numbers, and the number after the last one."""
_DIGEST_BYTES = 16


class WorldTable(msgspec.Struct, frozen=True, tag="whole"):
    """The part of a `World` that is the same for all of its workers."""

    generation: int
    contacts: tuple[str, ...]
    hostnames: tuple[str, ...]
    workers: tuple[int, ...] = ()
    previous: tuple[int, ...] = ()
    lost: tuple[str, ...] = ()
    state_lost: bool = False
    training: int = 0


class TableChange(msgspec.Struct, frozen=True, tag="change"):
    """A table of a world, described by its differences from the table of the world before."""

    kept: tuple[Run, ...]
    """Ranks in the world before, in the order of the ranks in this one. They are followed by newcomers."""
    stateless: tuple[Run, ...]
    """Ranks in this world of those that were kept and do not hold the job's state."""
    rest: WorldTable
    """Everything else; of the sequences by rank, the part of the newcomers."""
    digest: bytes
    """Digest of the resulting table."""

    def applied_to(self, base: WorldTable) -> WorldTable:
        """Return the resulting table.

        Args:
            base: the table of the world before.
        """
        previous = [rank for first, stop in self.kept for rank in range(len(base.workers))[first:stop]]
        for first, stop in self.stateless:
            previous[first:stop] = [-1] * len(previous[first:stop])
        rest = self.rest
        return msgspec.structs.replace(
            rest,
            contacts=(*_picked(base.contacts, self.kept), *rest.contacts),
            hostnames=(*_picked(base.hostnames, self.kept), *rest.hostnames),
            workers=(*_picked(base.workers, self.kept), *rest.workers),
            previous=(*previous, *rest.previous),
        )


class LatestTable:
    """The table of the latest world, as the roster and each of the workers keep it.

    Attributes:
        digest: identifies the table; empty: there is none.
    """

    def __init__(self) -> None:
        self._table: WorldTable | None = None
        self.digest = b""

    def replace(self, table: WorldTable) -> tuple[bytes, bytes]:
        """Replace the table by the next one.

        Returns:
            The encoded table, for all workers; and a shorter encoding of it for workers that have the table before, if
            there is one.
        """
        before, whole = self._table, encode(table)
        self._keep(table, whole)
        change = None if before is None else _change(before, table, self.digest)
        return whole, whole if change is None else encode(change)

    def read(self, encoded: bytes) -> WorldTable:
        """Return the table that the roster has sent, and keep it if other worlds may follow.

        Raises:
            msgspec.DecodeError: it is not a table, or a change of another table.
        """
        table: WorldTable | TableChange = decode(encoded, WorldTable | TableChange)
        if isinstance(table, TableChange):
            change = table
            if self._table is None:
                raise msgspec.DecodeError("it is a change, and there is no table before")
            table = change.applied_to(self._table)
            encoded = encode(table)
            if change.digest != _digest(encoded):
                raise msgspec.DecodeError("it is a change of another table")
        if table.workers:  # Jobs of fixed size have only one world.
            self._keep(table, encoded)
        return table

    def _keep(self, table: WorldTable, encoded: bytes) -> None:
        self._table, self.digest = table, _digest(encoded)


def _change(base: WorldTable, table: WorldTable, digest: bytes) -> TableChange | None:
    """Return the change from one table to another; None if they differ in another way than a change can express."""
    ranks = {worker: rank for rank, worker in enumerate(base.workers)}
    kept = [ranks[worker] for worker in takewhile(ranks.__contains__, table.workers)]
    stateless = (rank for rank in range(len(kept)) if table.previous[rank] < 0)
    newcomers = slice(len(kept), None)
    rest = msgspec.structs.replace(
        table,
        contacts=table.contacts[newcomers],
        hostnames=table.hostnames[newcomers],
        workers=table.workers[newcomers],
        previous=table.previous[newcomers],
    )
    change = TableChange(_runs(kept), _runs(stateless), rest, digest)
    # The lines of survivors may have changed, too: hosts of the same name are numbered.
    return change if change.applied_to(base) == table else None


def _runs(numbers: Iterable[int]) -> tuple[Run, ...]:
    """Return numbers as runs of successive ones, in their order.

    Example:
        >>> _runs([0, 1, 2, 7, 4, 5])
        ((0, 3), (7, 8), (4, 6))
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, number + 1])
    return tuple((first, stop) for first, stop in runs)


def _picked(values: Sequence[T], runs: Iterable[Run]) -> Iterator[T]:
    return (value for first, stop in runs for value in values[first:stop])


def _digest(encoded: bytes) -> bytes:
    return hashlib.sha256(encoded).digest()[:_DIGEST_BYTES]
