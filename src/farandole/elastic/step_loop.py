"""The loop of a training whose workers come and go.

A step is taken under a plan (see `plan`) and counts as a whole: when the world breaks in the middle of it, those who
are left finish it in the next one (see `recovery`).

Workers come between two steps. Then all members of a world are made alike: newcomers get the state, and are told how
far the training has come (see `progress`). A large state travels while the others train on (see `shadows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from farandole.core import basics
from farandole.core.retry import Gradients
from farandole.core.user_log import tell_user
from farandole.core.worlds import goodbye
from farandole.elastic import membership
from farandole.elastic.batches import RatePolicy
from farandole.elastic.framework import Loader, Trained
from farandole.elastic.recovery import NOTHING_ASKED, Ballot, Comparison, Position, Recovery
from farandole.elastic.shadows import Shadows
from farandole.elastic.step_plan import Plan, Plans
from farandole.elastic.training_progress import Progress
from farandole.errors import EvictedError, HorovodInternalError, InvalidRequestError
from farandole.wire.rendezvous import World

Result = TypeVar("Result")


class _Standing(msgspec.Struct, frozen=True):
    """What the ranks of a world tell each other before they are made alike."""

    loop: int
    has_state: bool
    saw_beginning: bool


class Loop:
    """Goes through the steps of a training, in whatever worlds there are. Iterate over it once.

    Args:
        loader: gives the samples.
        trained: what is trained.
        epochs: how often to go through the samples, in all worlds together.
        rate: what the learning rate does as the world changes.
    """

    def __init__(self, loader: Loader, trained: Trained, *, epochs: int, rate: RatePolicy) -> None:
        self._loader = loader
        self._trained = trained
        self._session = basics.current()
        self._elastic = membership.is_elastic()
        self._session.trainings += 1
        self._number = self._session.trainings
        """Which of the script's loops this is, from 1 on."""
        self._has_begun = False
        self._has_state = False
        """This worker holds the state of this loop."""
        self._saw_beginning = False
        """It was in this world when nobody had held the state yet: no step could count without it."""
        self._recovery = Recovery(self._session, self)
        self._progress = Progress(self._session, loader, trained, self._recovery, epochs=epochs, rate=rate)
        self._shadows = Shadows(self._session, trained, self._recovery.broken)
        self._plans = Plans(loader)
        self._plan: Plan | None = None
        """That of the step which this worker is in."""
        self._share = 1.0
        self._others_finish = False
        """The others are at the end of the loop before this one."""
        self._finishing = False
        """There is no other step."""
        self._stopping = False
        """This rank has been asked to stop."""
        self._outcome = NOTHING_ASKED
        """What the ranks' ballots of this step have asked."""
        self._counts = False
        """This step does."""
        self._is_reducing = False
        """The body has launched its gradients, and has not got them yet."""
        self._knows_body = False
        """The body has been run."""
        self._calls_while_reducing = not trained.reduces_once
        """The body waits for other calls, or other gradients, meanwhile."""
        self._again = False
        self._made_calls = False
        """This rank's body has made calls that all ranks have to make."""
        self._wants_checkpoint = False
        """This rank's clock says that one is due."""

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of this worker.

        Raises:
            SystemExit: this worker is not wanted any more; it has said so.
            InvalidRequestError: this is the second time; or what the user wants cannot be.
        """
        if self._has_begun:
            raise InvalidRequestError("a loop over steps can be gone through once: make another one by steps(...).")
        self._has_begun = True
        if self._is_past():
            tell_user(
                "info",
                f"the other workers have gone through loop {self._number} over steps; this one, which has just come, "
                "leaves it out, and gets the state in theirs",
            )
            return
        try:
            yield from self._steps()
        except EvictedError as error:
            raise goodbye(error) from None
        finally:
            self._session.retry = None

    def stop(self) -> None:
        """End the training after this step, on all workers, whoever of them says so.

        Who says so when this step's gradients are on their way, behind `backward()`, ends it after the next one.
        """
        self._stopping = True

    @property
    def epoch(self) -> int:
        """How often the samples have been gone through."""
        return self._loader.ledger.epoch

    @property
    def epoch_begins(self) -> bool:
        """Whether this is the first step of an epoch; on all workers alike, also on those that have just come."""
        return self._loader.ledger.cursor == 0

    @property
    def step(self) -> int:
        """Steps that count, since the loop began."""
        return self._progress.step

    # --- steps -------------------------------------------------------------------------------------------------

    def _steps(self) -> Iterator[Any]:
        self._enter(membership.arrive if self._elastic else None)
        while True:
            if self._bring_state():
                continue
            if self._progress.is_over:
                break
            plan = self._next_plan()
            if plan is None:
                self._loader.next_epoch()
                continue
            yield from self._one_step(plan)
            if self._shadows.is_astray:
                self._begin_again()
                continue
            self._commit(plan)
            if self._outcome.change and not self._progress.stop:
                # Who has learnt of it in another world has no others to wait for: they have turned away.
                if not self._plans.as_before:
                    self._give_the_rest()
                    self._wait_for_all()
                self._enter(membership.reform)
        self._plan, self._counts = None, False
        self._finish_together()

    def _is_past(self) -> bool:
        """Say whether this worker has come when the others were in a later loop: there it gets what they have."""
        world = self._session.world
        return self._elastic and world.generation == 0 and self._number < world.training

    def _next_plan(self) -> Plan | None:
        plan = self._plans.next(self._session.world, self._shadows.count, self._shadows.include_this_rank)
        if plan is not None:
            self._progress.scale_rate(plan.working)
        return plan

    def _one_step(self, plan: Plan) -> Iterator[Any]:
        self._plan = plan
        self._counts = False
        self._is_reducing = False
        while True:
            self._again = False
            self._share = 0.0 if self._shadows.include_this_rank else plan.share(self._session.world.rank)
            data = plan.batch.data
            if data is None:
                # Only the body knows what a step is, and whether it has calls that all ranks have to make.
                data = self._loader.borrow(plan.batch)
            if data is None:
                self._check_for_calls()
                self._trained.step_without_samples()
            else:
                yield data
                self._knows_body = True
            if not self._again:
                break
        if self._shadows.is_astray:
            return
        self._check_gradients_are_used()
        if not self._counts:
            self._vote()

    def _check_gradients_are_used(self) -> None:
        # They would die with this worker, although their samples count.
        if self._trained.has_unused_gradients():
            raise InvalidRequestError(
                "the body of the loop has computed gradients and made no optimizer.step() with them. A round of this "
                "loop is a step, and counts as a whole: to accumulate gradients, use a larger batch, go through parts "
                "of it in the body, and give DistributedOptimizer(backward_passes_per_step=) the number of parts."
            )

    def _check_for_calls(self) -> None:
        if self._progress.body_has_calls or self._made_calls:
            raise InvalidRequestError(
                "this worker has nothing to run the body of the loop with, as there are fewer samples left than "
                "workers; but the body makes collectives, which all have to make. It has to be started again."
            )

    def _commit(self, plan: Plan) -> None:
        self._plan = None
        self._loader.commit(plan.batch, plan.lost)
        self._progress.step += 1
        if self._outcome.save:
            self._wants_checkpoint = False
        # The others have begun theirs in the world of before: the parts of two worlds make no checkpoint.
        if self._outcome.save and not self._plans.as_before:
            self._trained.save(self._progress.kept(), self.step, self.epoch, self._session.world)

    # --- what the front end asks (see `farandole.core.retry.Retry`) ---------------------------------------------

    @property
    def share(self) -> float:
        """See `Again`."""
        return self._share

    def run(
        self,
        call: Callable[[], Result],
        restore: Callable[[], None] | None = None,
        adopt: Callable[[Result], Result] | None = None,
    ) -> Result:
        """See `Again`.

        Raises:
            InvalidRequestError: broken steps are given out again, which ranks do at different times; or this rank is a
                shadow.
        """
        if self._shadows.include_this_rank:
            raise InvalidRequestError(
                "the body of the loop made a collective for the first time while this worker was still getting the "
                "state of the training: it would have spoilt the result. It has to be started again."
            )
        if self._elastic and not self._session.settings.elastic_keep_gradients:
            raise InvalidRequestError(
                "the body of an elastic loop can make collectives of its own only where gradients are kept: without "
                "FARANDOLE_ELASTIC_KEEP_GRADIENTS=0."
            )
        self._made_calls = True
        self._calls_while_reducing = self._calls_while_reducing or self._is_reducing
        return self._recovery.run(call, restore, adopt)

    def broken(self, error: Exception) -> bool:
        """See `Again`."""
        return self._recovery.broken(error)

    def launched(self) -> bool:
        """See `Again`."""
        self._is_reducing = True
        # Who has finished such a call and the reduction would be ahead by two, of who has finished neither.
        return self._knows_body and not self._calls_while_reducing

    def ballot(self, meet: bool) -> Ballot:
        """See `Again`."""
        notices = self._session.notices
        changes = notices is not None and notices.change is not None
        if self._shadows.include_this_rank:
            # What its body makes of half a state is nobody's business, and others never lack what it has.
            return Ballot(changes, stop=False, save=False, calls=False, meet=False)
        return Ballot(changes, self._stopping, self._is_checkpoint_due(), self._made_calls, meet)

    def _is_checkpoint_due(self) -> bool:
        if self._session.world.rank == 0:
            self._wants_checkpoint = self._wants_checkpoint or self._trained.is_due(self.step + 1)
        # Shadows could not write a part of it.
        return self._wants_checkpoint and not self._shadows.count

    def count(self, outcome: Sequence[bool], gradients: Gradients) -> None:
        """See `Again`."""
        asked = Ballot(*outcome)
        self._take_note(asked)
        if self._shadows.include_this_rank:
            self._shadows.keep_up(lambda: self._recovery.meet(asked) if asked.meet else None)
        else:
            self._recovery.reduced(asked, gradients)

    def recover(self, gradients: Gradients) -> bool:
        """See `Again`."""
        if self._shadows.include_this_rank:
            # What its optimizer makes of these gradients is not used.
            self._shadows.go_astray()
            return True
        outcome = self._recovery.recover(gradients)
        if outcome is None:
            return False
        self.count(outcome, gradients)
        return True

    def give_out_again(self) -> None:
        """See `Again`."""
        self._is_reducing = False
        self._again = True

    def _take_note(self, outcome: Ballot) -> None:
        self._is_reducing = False
        if not self._counts:
            self._counts, self._outcome = True, outcome
            self._progress.learn(outcome)

    def _vote(self) -> None:
        """Let a step count whose body has reduced no gradients."""
        ballot = self.ballot(meet=False)
        if self._shadows.include_this_rank:
            self._shadows.keep_up(lambda: self._take_note(self._recovery.meet(ballot)))
        else:
            self._take_note(self._recovery.vote(ballot))

    def _finish_together(self) -> None:
        """Return when all ranks know that the last step counts: who is gone cannot tell the others any more."""
        self._finishing = True
        if self._elastic:
            self._vote()
        self._trained.close()

    def _wait_for_all(self) -> None:
        """Return when all ranks know that the step counts: who turns away from the world breaks it for the others."""
        try:
            self._session.exchange("elastic.counts", b"")
        except HorovodInternalError as error:
            if not self._recovery.broken(error):
                raise

    # --- worlds in the middle of a step (see `farandole.elastic.recovery.Listener`) ------------------------------

    def position(self, calls: int, can_give: bool) -> Position:
        """See `Listener`."""
        inside = self._plan is not None or self._finishing
        shadows = 0 if self._plan is None else self._plan.shadows
        return Position(calls, self.step, inside, self._has_state, can_give, shadows, self._number)

    def reformed(self, before: World) -> None:
        """See `Listener`."""
        self._plans.reformed(before)
        self._shadows.reformed()

    def resumed(self, comparison: Comparison, counts: bool) -> None:
        """See `Listener`."""
        self._plans.resumed(comparison)
        if self._plan is None or self._plans.as_before:
            return
        self._plan.survived_by(self._session.world)
        if not counts and not self._counts:
            self._plan.goes_on_without_the_lost()
        self._share = self._plan.share(self._session.world.rank)

    def hand_over(self, gradients: Gradients | None, sources: Sequence[int], receivers: Sequence[int]) -> None:
        """See `Listener`."""
        self._trained.hand_over(gradients, sources, receivers)

    # --- newcomers that do not have the state yet ----------------------------------------------------------------

    def _bring_state(self) -> bool:
        """Let shadows have some of the state as it is now, or see to it that all have all of it.

        Returns:
            Whether that is done, or this rank is in another world.
        """
        if self._shadows.send_some(is_over=self._progress.is_over):
            self._enter(None)
        elif self._shadows.is_astray:
            self._begin_again()
        else:
            return False
        return True

    def _give_the_rest(self) -> None:
        """Let shadows have the state before the world changes: they would have to begin anew in each."""
        if not self._shadows.are_served:
            return
        self._session.retry = None
        try:
            self._make_alike()
        except HorovodInternalError as error:
            if not self._recovery.broken(error):
                raise

    def _begin_again(self) -> None:
        """Be a newcomer once more."""
        self._plan = None
        self._progress.stop = False
        self._stopping = False  # If its body has asked for that, it did so with half a state.
        self._enter(membership.reform)

    # --- worlds between two steps -------------------------------------------------------------------------------

    def _enter(self, way: Callable[[], World] | None) -> None:
        """Enter a world, and make all its members alike."""
        # What is called from here on is not a part of a step.
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
                    way = None  # They come into this loop in this world.
                    continue
                self._wait_for_all()
                self._plans.forget_worlds()
                way = membership.reform
            except HorovodInternalError as error:
                if not self._recovery.broken(error):
                    raise
                way = membership.reform
        self._session.retry = self

    def _all_are_here(self) -> bool:
        """Say whether all are between two steps, as this worker is.

        Others may be in the next step already, as it was planned before this world; or still in the last one, and turn
        to the world that it is followed by when they have finished it.
        """
        comparison = self._recovery.compare()
        self._plans.entered(comparison)
        self._others_finish = comparison.others_before
        return not (comparison.others_inside or comparison.others_behind or comparison.others_before)

    def _make_alike(self) -> None:
        session, world = self._session, self._session.world
        standing = _Standing(self._number, self._has_state, self._saw_beginning)
        answers = session.exchange("elastic.trained", msgspec.msgpack.encode(standing))
        standings = [msgspec.msgpack.decode(each, type=_Standing) for each in answers]
        self._check_loop([each.loop for each in standings])
        holders = [rank for rank, each in enumerate(standings) if each.has_state]
        begins = not world.state_lost or any(each.saw_beginning for each in standings)
        self._saw_beginning = not holders and begins
        if not holders:
            self._progress.begin(is_lost=not begins)
        sources = holders or [0]
        receivers = [rank for rank in range(world.size) if rank not in sources]
        if receivers:
            self._give_state(sources, receivers, may_stream=bool(holders) and self._can_have_shadows())
        everyone = session.exchange("elastic.progress", self._progress.told())
        if world.rank in receivers:
            self._progress.follow(everyone[sources[0]])
        elif everyone[world.rank] != everyone[sources[0]]:
            raise AssertionError("survivors have come to different states; this is a bug of farandole")
        if not (self._has_state or self._shadows.include_this_rank):
            self._has_state = True
            if self._elastic:
                membership.trained(self._number)

    def _check_loop(self, numbers: Sequence[int]) -> None:
        """Raise InvalidRequestError if the others are in another loop of the script."""
        latest = max(numbers)
        if self._number < latest:
            raise InvalidRequestError(
                f"this worker came for loop {self._number} over steps, and meanwhile the others have begun loop "
                f"{latest} of the script. It has to be started again: then it goes there at once."
            )

    def _give_state(self, sources: Sequence[int], receivers: Sequence[int], *, may_stream: bool) -> None:
        was_shadow = self._shadows.include_this_rank
        self._shadows.give(sources, receivers, may_stream=may_stream)
        if was_shadow:
            # It was a body with half a state that asked.
            self._stopping = False

    def _can_have_shadows(self) -> bool:
        """Say whether somebody may go through the steps here who has not got the state yet."""
        body_has_calls = self._progress.body_has_calls or self._made_calls
        keeps_gradients = self._session.settings.elastic_keep_gradients
        return self._elastic and keeps_gradients and self._trained.reduces_once and not body_has_calls
