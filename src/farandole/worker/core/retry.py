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
    """The part of a session that makes broken calls again."""

    @property
    def share(self) -> float:
        """The factor of this worker's gradients before they are averaged, so that all samples count alike."""

    def run(
        self,
        call: Callable[[], Result],
        restore: Callable[[], None] | None = None,
        adopt: Callable[[Result], Result] | None = None,
    ) -> Result:
        """Make a call that all ranks make, in this world or the next ones, until it has a result.

        Args:
            call: a function that makes the call.
            restore: a function that restores what a failed call has destroyed.
            adopt: a function that makes the result from another rank's, if that rank got one before the world broke.
        """

    def broken(self, error: Exception) -> bool:
        """Return whether a call has failed because its world has ended."""

    def launched(self) -> bool:
        """Record that all gradients of the step are launched; return whether the ballot may leave with them.

        Otherwise it waits until the gradients are waited for.
        """

    def ballot(self, meet: bool) -> Sequence[bool]:
        """Return what this rank asks of all when this step counts. It should be sent with the last of the gradients.

        Args:
            meet: whether all ranks must have their reduced gradients before any goes on, because this one may change
                its own then and could not give them to others.
        """

    def count(self, outcome: Sequence[bool], gradients: Gradients) -> None:
        """Let the step count: its gradients are reduced here, all in one world.

        Args:
            outcome: the requests on any rank's ballot of the same world.
            gradients: the gradients of the step.
        """

    def recover(self, gradients: Gradients) -> bool:
        """Enter the next world, if this one has ended.

        Returns:
            Whether the step counts, because other ranks had its gradients. This rank has them now, too.
        """

    def give_out_again(self) -> None:
        """Give the batch of this step out once more, because its gradients are lost."""
