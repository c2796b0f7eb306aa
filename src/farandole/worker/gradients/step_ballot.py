"""The ballot of a step: when it is sent, and this rank's requests on it that concern its gradients."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.worker.core.retry import Retry
from farandole.worker.gradients.ballot_bundle import BallotBundle
from farandole.worker.gradients.context import Context
from farandole.worker.gradients.entry import Bundle
from farandole.worker.gradients.last_reduced import LastReduced
from farandole.worker.gradients.submit_batch import BatchQueue


class StepBallot:
    """The ballot that is sent with the last gradients of each step.

    A rank may be asked for its reduced gradients when it is already in the next step. If it may have changed them by
    then, it requests on its ballot that all ranks *meet*: none continues before all have their gradients.

    Attributes:
        bundle: the ballot itself; None until the first ballot of a session is cast.
        first_in_views: whether this is the first step in which some gradients have views.
        on_general_way: whether some gradients of this step were sent without a view.
    """

    def __init__(self, context: Context, bundles: Sequence[Bundle], queue: BatchQueue, reduced: LastReduced) -> None:
        """Create the object; there is no ballot yet.

        Args:
            context: the context of the step.
            bundles: all gradients; more may be added to them later.
            queue: the queue that submits the ballot.
            reduced: the gradients that others may ask for.
        """
        self._context = context
        self._bundles = bundles
        self._queue = queue
        self._reduced = reduced
        self.bundle: BallotBundle | None = None
        self.first_in_views = False
        self.on_general_way = False
        self._are_changed = False

    def expect_changes(self) -> None:
        """Record that the user may change reduced gradients before those of the next step are reduced."""
        self._are_changed = True

    def cast(self) -> None:
        """Send the ballot with the last launched gradients."""
        retry = self._retry()
        if retry is None:
            return
        if self.bundle is None:
            first = self._bundles[0].entries[0]
            self.bundle = BallotBundle(f"elastic.ballot.{first.name}", first.dtype, self._context.options)
        if not self.bundle.launched:
            self.bundle.fill_in(self._context.entered, retry.ballot(self._has_to_meet()))
            self._queue.add(self.bundle)

    def cast_early(self) -> None:
        """Cast the ballot before the end of the step, if no other gradients will be launched."""
        if not all(map(Bundle.has_begun, self._bundles)):
            return
        retry = self._retry()
        if retry is not None and retry.launched():
            self.cast()

    def outcome(self) -> list[bool]:
        """Return the requests of all ranks together, once the ballot has been reduced."""
        assert self.bundle is not None
        return self.bundle.outcome

    def _retry(self) -> Retry | None:
        return self._context.step_retry if self._bundles else None

    def _has_to_meet(self) -> bool:
        """Return whether this rank, once in the next step, could not send its reduced gradients to others."""
        if not self._context.has_next_world:
            return False
        self._are_changed = self._are_changed or not self._reduced.are_intact()
        return self._are_changed or self.first_in_views or self.on_general_way or not self._context.keeps
