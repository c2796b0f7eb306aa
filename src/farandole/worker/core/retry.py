"""The seam through which calls of a broken world are made again in the next one; see `farandole.worker.elastic`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class Gradients(Protocol):
    """The gradients of a step."""

    def are_intact(self) -> bool:
        """Return whether those that were reduced last are still here as they were, for ranks that lack them."""


class Retry(Protocol):
    """The part of a session that makes broken calls again."""

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
        """Return whether it was the end of its world that a call has failed with."""

    def launched(self) -> bool:
        """Record that all gradients of the step are launched; return whether the ballot may leave with them.

        Otherwise it waits until the gradients are waited for.
        """

    def ballot(self, meet: bool) -> Sequence[bool]:
        """Return what this rank asks of all when this step counts. It is to travel with the last of the gradients.

        Args:
            meet: all ranks are to have their reduced gradients before any goes on, because this one may change its own
                then and could not give them to others.
        """

    def count(self, outcome: Sequence[bool], gradients: Gradients) -> None:
        """Let the step count: its gradients are reduced here, all in one world.

        Args:
            outcome: what any rank's ballot of the same world has asked.
            gradients: those of the step.
        """

    def recover(self, gradients: Gradients) -> bool:
        """Enter the next world, if this one has ended.

        Returns:
            Whether the step counts, because other ranks had its gradients. They are here as well now.
        """

    def give_out_again(self) -> None:
        """Have the batch of this step given out once more: its gradients are lost."""
