"""Flat memory of a device, in which several gradients lie and travel as one request. A front end provides it."""

from __future__ import annotations

from typing import Protocol

from farandole.worker.core.session import Session
from farandole.worker.gradients.general_call import GeneralCall


class FlatMemory(Protocol):
    """The memory of one bucket.

    Attributes:
        is_outgrown: the gradients of a step did not fit into it, and took the general way.
    """

    is_outgrown: bool

    def came(self) -> None:
        """Record that a backward pass has finished one of the gradients in this thread, and not the last one."""

    def fits(self) -> bool:
        """Return whether all gradients of this step can travel in it; otherwise it is outgrown."""

    def call(self, session: Session, share: float) -> GeneralCall:
        """Move the gradients into it, multiplied by `share`, and return the call that reduces them."""
