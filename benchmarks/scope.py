"""The extent of a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scope:
    """The user's choice of how much of a case to measure.

    Attributes:
        quick: whether the run is small and short, only to show that it works.
        worlds: numbers of workers on one host; None: those of the case.
        sizes: sizes in bytes; None: those of the case.
    """

    quick: bool = False
    worlds: tuple[int, ...] | None = None
    sizes: tuple[int, ...] | None = None

    def choose_worlds(self, usual: Sequence[int]) -> Sequence[int]:
        """Return the worlds to measure in a case whose own worlds are `usual`."""
        return self.worlds or ((2,) if self.quick else usual)

    def choose_sizes(self, usual: Sequence[int], quick: Sequence[int]) -> Sequence[int]:
        """Return the sizes to measure in a case whose own sizes are `usual`, or `quick` in a quick run."""
        return self.sizes or (quick if self.quick else usual)
