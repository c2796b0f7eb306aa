"""The interface through which `farandole.worker.elastic` repeats the calls of a broken world in the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class Gradients(Protocol):
    """The gradients of a step."""

    def are_intact(self) -> bool:
        """Return whether the gradients that were reduced last are unchanged here, for ranks that lack them."""


class Retry(Protocol):
    """The part of a session that repeats calls that failed because their world broke."""

    @property
    def share(self) -> float:
        """The factor of this worker's gradients before they are averaged, so that all samples have equal weight."""

    def run(
        self,
        call: Callable[[], Result],
        restore: Callable[[], None] | None = None,
        adopt: Callable[[Result], Result] | None = None,
    ) -> Result:
        """Repeat a call that all ranks make, in this world and the next ones, until it has a result.

        Args:
            call: a function that makes the call.
            restore: a function that restores the data that a failed call has overwritten.
            adopt: a function that makes the result from that of a rank that got one before the world broke.
        """

    def broken(self, error: Exception) -> bool:
        """Return whether a call has failed because its world has ended."""

    def launched(self) -> bool:
        """Record that all gradients of the step are launched; return whether the ballot may be sent with them.

        Otherwise the ballot is sent when the gradients are waited for.
        """

    def ballot(self, meet: bool) -> Sequence[bool]:
        """Return this rank's ballot, its requests to all ranks for the moment when the step counts. Send it with the
        last gradients.

        Args:
            meet: whether all ranks must have their reduced gradients before any rank continues, because this rank may
                then change its own and could not send them to others.
        """

    def count(self, outcome: Sequence[bool], gradients: Gradients) -> None:
        """Count the step: all its gradients have been reduced here, in one world.

        Args:
            outcome: the requests that are on the ballot of any rank of this world.
            gradients: the gradients of the step.
        """

    def recover(self, gradients: Gradients) -> bool:
        """Enter the next world, if this one has ended.

        Returns:
            Whether the step counts, because other ranks had its gradients, which this rank now also has.
        """

    def give_out_again(self) -> None:
        """Return the batch of this step again from the loader, because its gradients are lost."""
