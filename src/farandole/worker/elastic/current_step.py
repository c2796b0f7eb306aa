"""The step that a worker is in, and the worker's requests to all ranks when the step counts."""

from __future__ import annotations

from farandole.worker.core.session import Session
from farandole.worker.elastic.framework import Trained
from farandole.worker.elastic.recovery import NOTHING_ASKED, Ballot
from farandole.worker.elastic.shadows import Shadows
from farandole.worker.elastic.step_plan import Plan
from farandole.worker.elastic.training_progress import Progress


class CurrentStep:
    """The state of the current step.

    Attributes:
        plan: the plan of the step that this worker is in; None between two steps.
        is_last: whether this is the last step, at which the ranks wait for each other.
        share: the factor of this rank's gradients.
        counts: whether the step counts.
        outcome: the requests on the ranks' ballots of this step.
        is_reducing: whether the body of the loop has launched its gradients, and does not have the result yet.
        is_to_repeat: whether its gradients are lost, and its batch is returned again.
    """

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.is_last = False
        self.share = 1.0
        self.counts = False
        self.outcome = NOTHING_ASKED
        self.is_reducing = False
        self.is_to_repeat = False

    def begin(self, plan: Plan) -> None:
        """Begin a step."""
        self.plan = plan
        self.counts = self.is_reducing = False

    def repeat(self) -> None:
        """Return the batch of the step again."""
        self.is_reducing = False
        self.is_to_repeat = True


class OwnBallot:
    """This rank's requests to all ranks when a step counts.

    Attributes:
        stopping: whether the user has asked for the end of the training.
        made_calls: whether this rank's body has made calls that all ranks must make.
        at_end: whether the last step has been taken.
    """

    def __init__(self, session: Session, trained: Trained, progress: Progress, shadows: Shadows) -> None:
        self._session = session
        self._trained = trained
        self._progress = progress
        self._shadows = shadows
        self.stopping = False
        self.made_calls = False
        self.at_end = False
        self._wants_checkpoint = False
        """Whether a checkpoint is due by this rank's clock."""

    def fill_in(self, *, meet: bool) -> Ballot:
        """Return the ballot of the current step; `meet` is that of `Retry.ballot`."""
        notices = self._session.notices
        changes = notices is not None and notices.change is not None
        if self._shadows.include_this_rank:
            # Its body has only a part of the state, so its requests are not used; and no rank ever lacks what a
            # shadow has.
            return Ballot(changes, stop=False, save=False, calls=False, meet=False)
        return Ballot(changes, self.stopping, self._is_checkpoint_due(), self.made_calls, meet)

    def checkpoint_is_written(self) -> None:
        """Record that all ranks write the checkpoint that was due."""
        self._wants_checkpoint = False

    def _is_checkpoint_due(self) -> bool:
        if self._session.world.rank == 0:
            checkpoints, step = self._trained.checkpoints, self._progress.step
            is_due = checkpoints.lacks(step) if self.at_end else checkpoints.is_due(step + 1)
            self._wants_checkpoint = self._wants_checkpoint or is_due
        # Shadows could not write a part of it.
        return self._wants_checkpoint and not self._shadows.count
