"""The places of a script that cannot be rewritten automatically.

NotUnderstood (FarandoleError, ValueError)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from farandole.errors import FarandoleError


class Refusal(NamedTuple):
    """One place of a script that a person has to edit."""

    line: int
    """Line number, from 1."""
    reason: str
    by_hand: str
    """The edit to make there."""


class NotUnderstood(FarandoleError, ValueError):
    """A script cannot be rewritten.

    Attributes:
        refusals: the places that cannot be rewritten, at least one, in the order of their lines.
    """

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        self.refusals = tuple(sorted(refusals))
        super().__init__("; ".join(f"line {each.line}: {each.reason}" for each in self.refusals))
