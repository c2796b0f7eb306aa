"""What a case is, and what several of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.conductor import Conductor, Contender, Row
from benchmarks.scope import Scope

KB, MB = 1 << 10, 1 << 20

ARENA = "farandole"
# The page of the cases that say no other.
BENCHMARKS = "contributing/benchmarks.md"
ORDINARY = "farandole, ordinary tensors"
GLOO, OPENMPI, MPICH = "gloo", "Open MPI", "MPICH"
MPIS = (OPENMPI, MPICH)
COPY_BOUND, WIRE_BOUND = "copy bound", "wire bound"


@dataclass(frozen=True)
class Ratio:
    """A column that compares: how many times as long as `under` the fastest of `over` took."""

    title: str
    over: tuple[str, ...]
    under: str = ARENA


@dataclass(frozen=True)
class Figure:
    """Plots of time over bytes.

    Attributes:
        file_key: one file for each value of this key of the rows; None is one file.
        panel_keys: one panel for each combination of these.
    """

    file_key: str | None = None
    panel_keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        letter: how it is asked for.
        title: what it measures, in one line.
        keys: of its rows, as the first columns of the table.
        ratios: the last columns.
        run: measures all rows. Its second argument says how much of it.
        figure: how it is plotted, if it is.
        group: a name by which it is asked for together with others.
        document: the page below `docs` that shows it.
    """

    letter: str
    title: str
    keys: tuple[str, ...]
    run: Callable[[Conductor, Scope], list[Row]]
    ratios: tuple[Ratio, ...] = ()
    figure: Figure | None = None
    group: str = ""
    document: str = BENCHMARKS


def everybody(work: str, **arguments: Any) -> list[Contender]:
    """Return one contender for each peer, all with the same work."""
    peers = ((ARENA, "farandole"), (GLOO, "gloo"), (OPENMPI, "openmpi"), (MPICH, "mpich"))
    return [Contender(label, peer, work, arguments) for label, peer in peers]


def copy_bound(size: int) -> Contender:
    """Return the bound of a collective on one host that moves so many bytes on each worker."""
    return Contender(COPY_BOUND, "farandole", "copy", {"bytes": size})
