"""The worlds that a loop of steps goes through.

Between two steps, all members of a world are synchronized: newcomers get the state, and the progress of the training.
In the middle of a step, survivors compare their progress, and finish the step (see `recovery`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from farandole.base.wire.rendezvous import World
from farandole.errors import HorovodInternalError, InvalidRequestError
from farandole.worker.core.retry import Gradients
from farandole.worker.core.session import Session
from farandole.worker.elastic import world_changes
from farandole.worker.elastic.batch_adaptation import BatchAdaptation
from farandole.worker.elastic.batches import RatePolicy
from farandole.worker.elastic.current_step import CurrentStep, OwnBallot
from farandole.worker.elastic.framework import Loader, Trained
from farandole.worker.elastic.recovery import Comparison, Position, Recovery
from farandole.worker.elastic.shadows import Shadows
from farandole.worker.elastic.step_plan import Plans
from farandole.worker.elastic.step_retry import StepRetry
from farandole.worker.elastic.training_progress import Progress


class _Standing(msgspec.Struct, frozen=True):
    """The facts that a rank sends to the others before they synchronize."""

    loop: int
    has_state: bool
    saw_beginning: bool


class LoopWorlds:
    """The worlds of one loop, and the state that outlives them.

    Attributes:
        has_state: whether this worker holds the state of the loop.
        recovery: the recovery, which repeats broken calls.
        progress: the progress of the training.
        shadows: newcomers that get the state while the others continue training.
        own_ballot: this rank's requests to all ranks when a step counts.
        retry: the `retry` of the session during a step.
    """

    def __init__(
        self,
        session: Session,
        number: int,
        loader: Loader,
        trained: Trained,
        step: CurrentStep,
        plans: Plans,
        *,
        epochs: int,
        rate: RatePolicy,
        adaptation: BatchAdaptation | None = None,
    ) -> None:
        """Create the object, without entering a world.

        Args:
            session: the session that enters the worlds.
            number: the number of this loop among the script's loops, from 1.
            loader: the loader of the samples.
            trained: the model and all other trained state.
            step: the current step.
            plans: the maker of the plans of steps.
            epochs: the number of epochs, in all worlds together.
            rate: the policy for the learning rate as the world changes.
            adaptation: the adaptation of the batch to the noise of the gradients; None: the batch is not adaptive.
        """
        self._session = session
        self._adapts = adaptation is not None
        self._elastic = world_changes.is_elastic()
        self._number = number
        self._trained = trained
        self._step = step
        self._plans = plans
        self.has_state = False
        self._saw_beginning = False
        """Whether this worker was in a world before any rank had the state: no step can have counted without it."""
        self._others_finish = False
        """Whether the other ranks are at the end of the previous loop."""
        self.recovery = Recovery(session, self)
        self.progress = Progress(
            session, loader, trained, self.recovery, epochs=epochs, rate=rate, adaptation=adaptation
        )
        self.shadows = Shadows(session, trained, self.recovery.broken)
        self.own_ballot = OwnBallot(session, trained, self.progress, self.shadows)
        self.retry = StepRetry(
            session,
            self.recovery,
            self.progress,
            self.shadows,
            step,
            self.own_ballot,
            elastic=self._elastic,
            reduces_once=trained.reduces_once,
        )

    # --- in the middle of a step (see `worker.elastic.recovery.Listener`) ----------------------------------------

    def position(self, calls: int, can_give: bool) -> Position:
        plan = self._step.plan
        inside = plan is not None or self._step.is_last
        shadows = 0 if plan is None else plan.shadows
        return Position(calls, self.progress.step, inside, self.has_state, can_give, shadows, self._number)

    def reformed(self, before: World) -> None:
        self._plans.reformed(before)
        self.shadows.reformed()

    def resumed(self, comparison: Comparison, counts: bool) -> None:
        self._plans.resumed(comparison)
        plan = self._step.plan
        if plan is None or self._plans.as_before:
            return
        plan.survived_by(self._session.world)
        if not counts and not self._step.counts:
            plan.goes_on_without_the_lost()
        self._step.share = plan.share(self._session.world.rank)

    def hand_over(self, gradients: Gradients | None, sources: Sequence[int], receivers: Sequence[int]) -> None:
        self._trained.hand_over(gradients, sources, receivers)

    # --- newcomers without the state -------------------------------------------------------------------------------

    def bring_state(self) -> bool:
        """Send shadows a part of the state, or make sure that all ranks have all of it.

        Returns:
            Whether all ranks have the state now, or this rank is in another world.
        """
        if self.shadows.send_some(is_over=self.progress.is_over):
            self.enter(None)
        elif self.shadows.has_lost_world:
            self.begin_again()
        else:
            return False
        return True

    def begin_again(self) -> None:
        """Enter the next world as a newcomer again."""
        self._step.plan = None
        self.progress.stop = False
        self.own_ballot.stopping = False  # Its body may have asked for it with only a part of the state.
        self.enter(world_changes.reform)

    # --- between two steps -----------------------------------------------------------------------------------------

    def change(self) -> None:
        """Enter the next world, as the ranks agreed when the last step counted."""
        # A rank that has learnt of it in another world need not wait for others: they have left this one.
        if not self._plans.as_before:
            self._give_the_rest()
            self._wait_for_all()
        self.enter(world_changes.reform)

    def enter(self, way: Callable[[], World] | None) -> None:
        """Enter a world, and synchronize its members.

        Args:
            way: the function that enters it; None: this worker is already in it.
        """
        # Calls from here on are not part of a step.
        self._session.retry = None
        self._plans.forget_worlds()
        while True:
            before = self._session.world
            try:
                if way is not None:
                    way()
                    if self._session.world is not before:
                        self.reformed(before)
                if not self._elastic or self._all_are_here():
                    self._make_alike()
                    self._plans.forget_worlds()
                    break
                if self._plans.as_before:
                    break
                if self._others_finish:
                    way = None  # The others enter this loop in this world.
                    continue
                self._wait_for_all()
                self._plans.forget_worlds()
                way = world_changes.reform
            except HorovodInternalError as error:
                if not self.recovery.broken(error):
                    raise
                way = world_changes.reform
        self._session.retry = self.retry

    def _all_are_here(self) -> bool:
        """Return whether all ranks are between two steps, as this worker is.

        Others may already be in the next step, as it was planned before this world. Or they are still in the last one,
        and enter the next world when they have finished it.
        """
        comparison = self.recovery.compare()
        self._plans.entered(comparison)
        self._others_finish = comparison.others_before
        return not (comparison.others_inside or comparison.others_behind or comparison.others_before)

    def _wait_for_all(self) -> None:
        """Wait until all ranks know that the step counts: a rank that leaves the world breaks it for the others."""
        try:
            self._session.exchange("elastic.counts", b"")
        except HorovodInternalError as error:
            if not self.recovery.broken(error):
                raise

    def _give_the_rest(self) -> None:
        """Send shadows the rest of the state before the world changes: otherwise they would restart in each world."""
        if not self.shadows.are_served:
            return
        self._session.retry = None
        try:
            self._make_alike()
        except HorovodInternalError as error:
            if not self.recovery.broken(error):
                raise

    # --- synchronizing the members -----------------------------------------------------------------------------------

    def _make_alike(self) -> None:
        session, world = self._session, self._session.world
        # Before the first call: a rank that completes it knows that all others have reached it.
        session.times_made_alike += 1
        standing = _Standing(self._number, self.has_state, self._saw_beginning)
        answers = session.exchange("elastic.trained", msgspec.msgpack.encode(standing))
        standings = [msgspec.msgpack.decode(each, type=_Standing) for each in answers]
        self._check_loop([each.loop for each in standings])
        holders = [rank for rank, each in enumerate(standings) if each.has_state]
        begins = not world.state_lost or any(each.saw_beginning for each in standings)
        self._saw_beginning = not holders and begins
        if not holders:
            self.progress.begin(is_lost=not begins)
        sources = holders or [0]
        receivers = [rank for rank in range(world.size) if rank not in sources]
        if receivers:
            self._give_state(sources, receivers, may_stream=bool(holders) and self._can_have_shadows())
        everyone = session.exchange("elastic.progress", self.progress.told())
        if world.rank in receivers:
            self.progress.follow(everyone[sources[0]])
        elif everyone[world.rank] != everyone[sources[0]]:
            raise AssertionError("survivors have different states; this is a bug of farandole")
        if not (self.has_state or self.shadows.include_this_rank):
            self.has_state = True
            if self._elastic:
                world_changes.trained(self._number)

    def _check_loop(self, numbers: Sequence[int]) -> None:
        """Raise InvalidRequestError if the others are in another loop of the script."""
        latest = max(numbers)
        if self._number < latest:
            raise InvalidRequestError(
                f"this worker joined for loop {self._number} over steps, and meanwhile the others have begun loop "
                f"{latest} of the script. It must be started again, and will then enter that loop at once."
            )

    def _give_state(self, sources: Sequence[int], receivers: Sequence[int], *, may_stream: bool) -> None:
        was_shadow = self.shadows.include_this_rank
        self.shadows.give(sources, receivers, may_stream=may_stream)
        if was_shadow:
            # If its body has asked for the end, it did so with only a part of the state.
            self.own_ballot.stopping = False

    def _can_have_shadows(self) -> bool:
        """Return whether a rank that does not have the state yet may take the steps here."""
        body_has_calls = self.progress.body_has_calls or self.own_ballot.made_calls
        keeps_gradients = self._session.settings.elastic_keep_gradients
        can_follow = self._trained.reduces_once and not body_has_calls and not self._adapts
        return self._elastic and keeps_gradients and can_follow
