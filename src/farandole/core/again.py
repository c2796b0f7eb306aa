"""The seam through which calls of a broken world are made again in the next one; see `farandole.elastic`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class StepBroken(Exception):
    """The world has broken before the step counted: its gradients are to be reduced again, in the world of now."""


class Again(Protocol):
    """What a session has while somebody makes broken calls again."""

    @property
    def share(self) -> float:
        """By what this worker's gradients are multiplied, before they are averaged, so that samples count alike."""

    def run(
        self,
        call: Callable[[], Result],
        restore: Callable[[], None] | None = None,
        adopt: Callable[[Result], Result] | None = None,
    ) -> Result:
        """Make a call that all ranks make, in this world or the next ones, until it has a result.

        Args:
            call: makes it.
            restore: puts back what a failed call has destroyed.
            adopt: makes the result out of another rank's, which has got one before the world broke.
        """

    def broken(self, error: Exception) -> bool:
        """Say whether it was the end of its world that a call has failed with."""

    def recover(self) -> None:
        """Enter the next world, if this one has ended."""

    def vote(self) -> None:
        """Let the step count, once all ranks have all their gradients.

        Raises:
            StepBroken: they have not.
        """

    def give_out_again(self) -> None:
        """Have the batch of this step given out once more: its gradients are lost."""
