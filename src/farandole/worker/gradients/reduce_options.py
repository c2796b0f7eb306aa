"""The options for reducing an optimizer's gradients."""

from __future__ import annotations

from typing import NamedTuple

from farandole.worker.core.group import ProcessSet
from farandole.worker.core.session import Session


class ReduceOptions(NamedTuple):
    """The options that all gradients of an optimizer share."""

    op: int
    prescale: float
    """The factor before the reduction."""
    postscale: float
    """The factor after the reduction."""
    process_set: ProcessSet
    """The ranks that take part."""

    def group(self, session: Session) -> int:
        """Return the native number of the ranks that take part."""
        return session.group_of(self.process_set, "DistributedOptimizer")
