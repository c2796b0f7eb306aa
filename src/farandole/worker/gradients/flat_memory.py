"""Flat memory of a device for several gradients, which are reduced by one request. A front end provides it."""

from __future__ import annotations

from typing import Protocol

from farandole.worker.core.session import Session
from farandole.worker.gradients.general_call import GeneralCall


class FlatMemory(Protocol):
    """The memory of one bucket.

    If this rank's own gradients are kept until the step counts, the bucket has a *twin* of the same size: they are sent
    from the twin, and the reduced ones are stored in the bucket.

    Attributes:
        is_outgrown: whether the gradients of a step did not fit into it, and took the general way.
    """

    is_outgrown: bool

    def came(self) -> None:
        """Record that a backward pass has finished a gradient other than the last one, in this thread."""

    def fits(self) -> bool:
        """Return whether all gradients of this step fit into it; otherwise it is outgrown."""

    def put(self, share: float) -> None:
        """Move the gradients, multiplied by `share`, to the memory that they are sent from.

        With a share of 0, they may have any value, including NaN.
        """

    def scale(self, factor: float) -> None:
        """Multiply the gradients that `put` has moved."""

    def call(self, session: Session) -> GeneralCall:
        """Return the call that reduces the gradients that `put` has moved."""

    def checksum(self) -> int:
        """Return a checksum of the reduced gradients in it. Waits for the device."""
