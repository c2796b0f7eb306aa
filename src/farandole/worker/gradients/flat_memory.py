"""Flat memory of a device, in which several gradients lie and travel as one request. A front end provides it."""

from __future__ import annotations

from typing import Protocol

from farandole.worker.core.session import Session
from farandole.worker.gradients.general_call import GeneralCall


class FlatMemory(Protocol):
    """The memory of one bucket.

    Where this rank's own gradients are kept until the step counts, the bucket has a *twin* of the same size: they are
    sent from the twin, and the reduced ones come to the bucket.

    Attributes:
        is_outgrown: whether the gradients of a step did not fit into it, and took the general way.
    """

    is_outgrown: bool

    def came(self) -> None:
        """Record that a backward pass has finished one of the gradients, but not the last one, in this thread."""

    def fits(self) -> bool:
        """Return whether all gradients of this step can travel in it; otherwise it is outgrown."""

    def put(self, share: float) -> None:
        """Move the gradients, multiplied by `share`, to the memory that they are sent from.

        With a share of 0 they may be anything, also not a number.
        """

    def scale(self, factor: float) -> None:
        """Multiply the gradients that `put` has moved."""

    def call(self, session: Session) -> GeneralCall:
        """Return the call that reduces the gradients that `put` has moved."""

    def checksum(self) -> int:
        """Return a number that changes when the reduced gradients in it are changed. Waits for the device."""
