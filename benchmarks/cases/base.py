"""`Case`, and what several cases share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.conductor import Conductor, Contender, Row
from benchmarks.scope import Scope

KB, MB = 1 << 10, 1 << 20

ARENA = "farandole"
# The default page of a case.
BENCHMARKS = "contributing/benchmarks.md"
ORDINARY = "farandole, ordinary tensors"
UNNAMED = "farandole, ordinary tensors, no name"
GLOO, OPENMPI, MPICH = "gloo", "Open MPI", "MPICH"
MPIS = (OPENMPI, MPICH)
COPY_BOUND, WIRE_BOUND = "copy bound", "wire bound"


@dataclass(frozen=True)
class Ratio:
    """A column that compares: the time of the fastest of `over`, divided by the time of `under`."""

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
        letter: its name on the command line.
        title: what it measures, in one line.
        keys: the keys of its rows, which are the first columns of the table.
        ratios: the last columns.
        run: a function that measures all rows, as far as its second argument says.
        figure: how it is plotted; None: it is not.
        group: the name of a group of cases that it belongs to, which the command line takes, too.
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
    """Return the bound of a collective on one host that moves this many bytes on each worker."""
    return Contender(COPY_BOUND, "farandole", "copy", {"bytes": size})
