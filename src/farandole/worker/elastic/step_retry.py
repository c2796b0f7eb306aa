"""Repeats the calls of a loop of steps in the next world: an implementation of `worker.core.retry.Retry`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from farandole.errors import InvalidRequestError
from farandole.worker.core.retry import Gradients
from farandole.worker.core.session import Session
from farandole.worker.elastic.current_step import CurrentStep, OwnBallot
from farandole.worker.elastic.recovery import Ballot, Recovery
from farandole.worker.elastic.shadows import Shadows
from farandole.worker.elastic.training_progress import Progress

Result = TypeVar("Result")


class StepRetry:
    """The calls of the loop's body, and the reduction of its gradients."""

    def __init__(
        self,
        session: Session,
        recovery: Recovery,
        progress: Progress,
        shadows: Shadows,
        step: CurrentStep,
        own_ballot: OwnBallot,
        *,
        elastic: bool,
        reduces_once: bool,
    ) -> None:
        """Create the object for a loop.

        Args:
            session: the session whose calls are repeated.
            recovery: the recovery, which repeats broken calls.
            progress: the progress, which records the ranks' requests.
            shadows: the shadows of the world.
            step: the current step.
            own_ballot: this rank's requests to all ranks.
            elastic: whether there can be a next world.
            reduces_once: whether a step has exactly one reduction of gradients.
        """
        self._session = session
        self._recovery = recovery
        self._progress = progress
        self._shadows = shadows
        self._step = step
        self._own_ballot = own_ballot
        self._elastic = elastic
        self._calls_while_reducing = not reduces_once
        """Whether the body waits for other calls, or other gradients, while its gradients are reduced."""
        self._knows_body = False
        """Whether the body has been run once."""

    def body_has_run(self) -> None:
        """Record that the body of the loop has been run for a step."""
        self._knows_body = True

    # --- calls of the body -----------------------------------------------------------------------------------------

    def run(
        self,
        call: Callable[[], Result],
        restore: Callable[[], None] | None = None,
        adopt: Callable[[Result], Result] | None = None,
    ) -> Result:
        """Repeat a call until it has a result, as `Retry` describes.

        Raises:
            InvalidRequestError: broken steps are repeated as a whole, which ranks do at different times; or this rank
                is a shadow.
        """
        if self._shadows.include_this_rank:
            raise InvalidRequestError(
                "the body of the loop made a collective for the first time while this worker was still getting the "
                "state of the training: it would have made the result wrong. Start this worker again."
            )
        if self._elastic and not self._session.settings.elastic_keep_gradients:
            raise InvalidRequestError(
                "the body of an elastic loop can make collectives of its own only where gradients are kept: without "
                "FARANDOLE_ELASTIC_KEEP_GRADIENTS=0."
            )
        self._own_ballot.made_calls = True
        self._calls_while_reducing = self._calls_while_reducing or self._step.is_reducing
        return self._recovery.run(call, restore, adopt)

    def broken(self, error: Exception) -> bool:
        return self._recovery.broken(error)

    # --- the reduction of gradients --------------------------------------------------------------------------------

    @property
    def share(self) -> float:
        return self._step.share

    def launched(self) -> bool:
        self._step.is_reducing = True
        # A rank that has finished such a call and the reduction would be two calls ahead of one that has finished
        # neither.
        return self._knows_body and not self._calls_while_reducing

    def ballot(self, meet: bool) -> Ballot:
        return self._own_ballot.fill_in(meet=meet)

    def count(self, outcome: Sequence[bool], gradients: Gradients) -> None:
        asked = Ballot(*outcome)
        self._take_note(asked)
        if self._shadows.include_this_rank:
            self._shadows.keep_up(lambda: self._recovery.meet(asked) if asked.meet else None)
        else:
            self._recovery.reduced(asked, gradients)

    def recover(self, gradients: Gradients) -> bool:
        if self._shadows.include_this_rank:
            # The result of its optimizer is not used.
            self._shadows.lose_world()
            return True
        outcome = self._recovery.recover(gradients)
        if outcome is None:
            return False
        self.count(outcome, gradients)
        return True

    def give_out_again(self) -> None:
        self._step.repeat()

    # --- a step without gradients ----------------------------------------------------------------------------------

    def vote(self) -> None:
        """Count a step whose body has reduced no gradients."""
        ballot = self.ballot(meet=False)
        if self._shadows.include_this_rank:
            self._shadows.keep_up(lambda: self._take_note(self._recovery.meet(ballot)))
        else:
            self._take_note(self._recovery.vote(ballot))

    def _take_note(self, outcome: Ballot) -> None:
        step = self._step
        step.is_reducing = False
        if not step.counts:
            step.counts, step.outcome = True, outcome
            self._session.own_failures.progress()
            self._progress.learn(outcome)
