"""How much of a case to measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scope:
    """What the person asked for.

    Attributes:
        quick: small and short, to see that it works.
        worlds: numbers of workers on one host; None is what the case has.
        sizes: in bytes; None is what the case has.
    """

    quick: bool = False
    worlds: tuple[int, ...] | None = None
    sizes: tuple[int, ...] | None = None

    def choose_worlds(self, usual: Sequence[int]) -> Sequence[int]:
        """Return the worlds to measure, of a case that usually has these."""
        return self.worlds or ((2,) if self.quick else usual)

    def choose_sizes(self, usual: Sequence[int], quick: Sequence[int]) -> Sequence[int]:
        """Return the sizes to measure, of a case that usually, or quickly, has these."""
        return self.sizes or (quick if self.quick else usual)
