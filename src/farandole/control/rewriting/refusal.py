"""What a script has that is not understood, or that no edit can make right.

NotUnderstood (FarandoleError, ValueError)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from farandole.errors import FarandoleError


class Refusal(NamedTuple):
    """One place of a script where a person has to decide."""

    line: int
    """From 1 on."""
    reason: str
    by_hand: str
    """What to do there."""


class NotUnderstood(FarandoleError, ValueError):
    """A script cannot be rewritten.

    Attributes:
        refusals: why, at least one, in the order of their lines.
    """

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        self.refusals = tuple(sorted(refusals))
        super().__init__("; ".join(f"line {each.line}: {each.reason}" for each in self.refusals))
