"""The loop of a training whose workers come and go.

A step is taken under a *plan*: which ranks read which samples, made from the ledger and the world that there was. When
ranks are lost before the step counts, the plan stays, their part of it is given back to the ledger, and the others'
gradients are weighted by the samples that are left. The next step is planned for the world that there is then.

A rank that learns only from others that a step counts (see `recovery`) takes the following step by the plan that they
have made meanwhile, in the world of before.

Newcomers get the state between two steps. A large one travels while the others train: meanwhile a newcomer is a
*shadow* of rank 0. It goes through the same steps, with the samples of that rank, gets the same reduced gradients, and
counts for nothing. When the world breaks before it has the state, it is a newcomer again, and the others finish the
step without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from farandole.core import basics
from farandole.core.again import Gradients
from farandole.core.errors import EvictedError, HorovodInternalError, InvalidRequestError, StateLostError
from farandole.core.rendezvous import World
from farandole.core.saying import tell_user
from farandole.core.worlds import goodbye
from farandole.elastic import membership
from farandole.elastic.batches import RatePolicy, based_on_first
from farandole.elastic.framework import Batch, Loader, Stream, Trained
from farandole.elastic.ledger import Ledger
from farandole.elastic.recovery import NOTHING_ASKED, Ballot, Comparison, Position, Recovery

Result = TypeVar("Result")


class Progress(msgspec.Struct, frozen=True):
    """How far the training has come, besides what the framework holds."""

    step: int
    calls: int
    ledger: Ledger
    first_batch: int
    """Samples of all ranks in a full step of the first world."""
    factor: float
    """By which the learning rates have been multiplied."""
    body_has_calls: bool
    """Whether the body of the loop makes calls that all ranks have to make."""
    stop: bool
    """Whether there is no other step, as somebody has asked for that."""
    first_epoch: int
    """In which the loop began."""


class _Plan:
    """One step: who reads what, and who is still there to do it."""

    def __init__(self, batch: Batch, world: World, shadows: int) -> None:
        self.batch = batch
        self.shadows = shadows
        """So many ranks of its world, the last ones, have no part in it."""
        self.present = list(range(world.size))
        """By their ranks of now: the ranks that those who are still there have in the world of the plan."""
        self.lost: frozenset[int] = frozenset()
        """Whose samples will not be in the result."""
        self._world = world

    def survived_by(self, world: World) -> None:
        """Take note of the world of now, which has members of the plan's world only."""
        # By their numbers: between the two worlds there may have been some that this worker has never seen.
        self.present = [self._world.workers.index(worker) for worker in world.workers]

    def goes_on_without_the_lost(self) -> None:
        """The step will be finished by those who are present."""
        self.lost = frozenset(range(len(self.batch.shares))).difference(self.present)

    def share(self, rank: int) -> float:
        """Return by what this rank's mean gradient is multiplied so that the mean over ranks is one over samples."""
        size = self._world.size
        if len(self.present) == size:
            return self.batch.samples * size / self.batch.total
        counts = [_count(self.batch.shares[each]) for each in self.present]
        total = sum(counts)
        return counts[rank] * len(counts) / total if total else 0.0


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
        self._epochs = epochs
        self._rate = rate
        self._session = basics.current()
        self._elastic = membership.is_elastic()
        self._session.trainings += 1
        self._number = self._session.trainings
        """Which of the script's loops this is, from 1 on."""
        self._has_begun = False
        self._has_state = False
        """This worker holds the state of this loop."""
        self._first_epoch = loader.ledger.epoch
        self._recovery = Recovery(self._session, self)
        self._plan: _Plan | None = None
        self._share = 1.0
        self._before: World | None = None
        """The world in which the current plan was made, or the others have made the next one; None: that of now."""
        self._plan_as_before = False
        """The others have planned the next step already, in the world of before."""
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
        self._body_has_calls = False
        """All ranks know that some body has."""
        self._shadows = 0
        """So many ranks of this world, the last ones, do not have the state yet."""
        self._shadows_before = 0
        """So many in the plan that the others have made in the world before."""
        self._stream: Stream | None = None
        """What brings it to them."""
        self._is_astray = False
        """This rank is a shadow whose world has ended."""
        self._wants_checkpoint = False
        """This rank's clock says that one is due."""
        self._step_began = time.monotonic()
        self._step = 0
        self._first_batch = 0
        self._factor = 1.0
        self._scaled_for = 0
        """The size of the world that the factor is for; 0: it is to be found out."""

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
            self._session.again = None

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
        return self._step

    # --- steps -------------------------------------------------------------------------------------------------

    def _steps(self) -> Iterator[Any]:
        self._enter(membership.arrive if self._elastic else None)
        while True:
            if self._stream is not None and self._bring_state(self._stream):
                continue
            if self._is_over:
                break
            plan = self._next_plan()
            if plan is None:
                self._loader.next_epoch()
                continue
            yield from self._one_step(plan)
            if self._is_astray:
                self._begin_again()
                continue
            self._commit(plan)
            if self._outcome.change and not self._outcome.stop:
                # Who has learnt of it in another world has no others to wait for: they have turned away.
                if not self._plan_as_before:
                    self._give_the_rest()
                    self._wait_for_all()
                self._enter(membership.reform)
        self._plan, self._counts = None, False
        self._finish_together()

    def _is_past(self) -> bool:
        """Say whether this worker has come when the others were in a later loop: there it gets what they have."""
        world = self._session.world
        return self._elastic and world.generation == 0 and self._number < world.training

    @property
    def _is_over(self) -> bool:
        return self._loader.ledger.epoch >= self._first_epoch + self._epochs or self._outcome.stop

    def _next_plan(self) -> _Plan | None:
        now, shadows = self._session.world, self._shadows
        world = now
        if self._plan_as_before and self._before is not None:
            world, shadows = self._before, self._shadows_before
        working = world.size - shadows
        batch = self._loader.next(working, 0 if self._is_shadow else world.rank)
        if batch is None:
            return None
        self._scale_rate(working)
        plan = _Plan(batch, world, shadows)
        if world is not now:
            plan.survived_by(now)
            plan.goes_on_without_the_lost()
        self._forget_worlds()
        return plan

    def _one_step(self, plan: _Plan) -> Iterator[Any]:
        self._plan = plan
        self._counts = False
        self._is_reducing = False
        while True:
            self._again = False
            self._share = 0.0 if self._is_shadow else plan.share(self._session.world.rank)
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
        if not (self._counts or self._is_astray):
            self._vote()

    @property
    def _is_shadow(self) -> bool:
        return self._shadows > 0 and not self._has_state

    def _check_for_calls(self) -> None:
        if self._body_has_calls or self._made_calls:
            raise InvalidRequestError(
                "this worker has nothing to run the body of the loop with, as there are fewer samples left than "
                "workers; but the body makes collectives, which all have to make. It has to be started again."
            )

    def _commit(self, plan: _Plan) -> None:
        self._plan = None
        self._loader.commit(plan.batch, plan.lost)
        self._step += 1
        if self._outcome.save:
            self._wants_checkpoint = False
        # The others have begun theirs in the world of before: the parts of two worlds make no checkpoint.
        if self._outcome.save and not self._plan_as_before:
            # Who goes on from there has not been asked to stop.
            progress = msgspec.msgpack.encode(msgspec.structs.replace(self._progress(), stop=False))
            self._trained.save(progress, self._step, self._loader.ledger.epoch, self._session.world)

    # --- what the front end asks (see `farandole.core.again.Again`) ---------------------------------------------

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
        if self._is_shadow:
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
        if self._is_shadow:
            # What its body makes of half a state is nobody's business, and others never lack what it has.
            return Ballot(changes, stop=False, save=False, calls=False, meet=False)
        return Ballot(changes, self._stopping, self._is_checkpoint_due(), self._made_calls, meet)

    def _is_checkpoint_due(self) -> bool:
        if self._session.world.rank == 0:
            self._wants_checkpoint = self._wants_checkpoint or self._trained.is_due(self._step + 1)
        # Shadows could not write a part of it.
        return self._wants_checkpoint and not self._shadows

    def count(self, outcome: Sequence[bool], gradients: Gradients) -> None:
        """See `Again`."""
        asked = Ballot(*outcome)
        self._take_note(asked)
        if self._is_shadow:
            self._keep_up(lambda: self._recovery.meet(asked) if asked.meet else None)
        else:
            self._recovery.reduced(asked, gradients)

    def recover(self, gradients: Gradients) -> bool:
        """See `Again`."""
        if self._is_shadow:
            # What its optimizer makes of these gradients is not used.
            self._is_astray = True
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
            self._body_has_calls = self._body_has_calls or outcome.calls

    def _vote(self) -> None:
        """Let a step count whose body has reduced no gradients."""
        ballot = self.ballot(meet=False)
        if self._is_shadow:
            self._keep_up(lambda: self._take_note(self._recovery.meet(ballot)))
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
        return Position(calls, self._step, inside, self._has_state, can_give, shadows, self._number)

    def reformed(self, before: World) -> None:
        """See `Listener`."""
        self._before = self._before or before
        self._drop_stream()
        self._shadows = 0

    def resumed(self, comparison: Comparison, counts: bool) -> None:
        """See `Listener`."""
        if comparison.others_inside:
            self._shadows_before = comparison.shadows
        if comparison.behind or self._plan_as_before:
            self._plan_as_before = True
            return
        if self._plan is not None:
            self._plan.survived_by(self._session.world)
            if not counts and not self._counts:
                self._plan.goes_on_without_the_lost()
            self._share = self._plan.share(self._session.world.rank)
        self._forget_worlds()

    def hand_over(self, gradients: Gradients | None, sources: Sequence[int], receivers: Sequence[int]) -> None:
        """See `Listener`."""
        self._trained.hand_over(gradients, sources, receivers)

    def _forget_worlds(self) -> None:
        self._before, self._shadows_before, self._plan_as_before = None, 0, False

    # --- newcomers that do not have the state yet ----------------------------------------------------------------

    def _bring_state(self, stream: Stream) -> bool:
        """Send some of the state as it is now, or see to it that all have all of it.

        Returns:
            Whether that is done, or this rank is in another world.
        """
        now = time.monotonic()
        seconds, self._step_began = now - self._step_began, now
        try:
            if not self._is_over and not stream.send_some(seconds):
                return False
            self._session.exchange("elastic.sent", b"")
        except HorovodInternalError as error:
            if not self._recovery.broken(error):
                raise
            self._drop_stream()
            if not self._is_shadow:
                # The next step begins in this world, as it does for those who have not noticed yet.
                return False
            self._begin_again()
            return True
        self._enter(None)
        return True

    def _give_the_rest(self) -> None:
        """Let shadows have the state before the world changes: they would have to begin anew in each."""
        if self._stream is None:
            return
        self._session.again = None
        try:
            self._make_alike()
        except HorovodInternalError as error:
            if not self._recovery.broken(error):
                raise

    def _keep_up(self, meet: Callable[[], object]) -> None:
        """Go on with the others when their step counts, and have what has come of the state, while their world lives.

        Args:
            meet: does what all ranks do then.
        """
        try:
            meet()
            if self._stream is not None:
                self._stream.take()
        except HorovodInternalError as error:
            if not self._recovery.broken(error):
                raise
            self._is_astray = True

    def _begin_again(self) -> None:
        """Be a newcomer once more."""
        self._plan, self._outcome = None, NOTHING_ASKED
        self._enter(membership.reform)

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._stream.abandon()
        self._stream = None

    # --- worlds between two steps -------------------------------------------------------------------------------

    def _enter(self, way: Callable[[], World] | None) -> None:
        """Enter a world, and make all its members alike."""
        # What is called from here on is not a part of a step.
        self._session.again = None
        self._is_astray = False
        self._forget_worlds()
        while True:
            before = self._session.world
            try:
                if way is not None:
                    way()
                    if self._session.world is not before:
                        self.reformed(before)
                if not self._elastic or self._all_are_here():
                    self._make_alike()
                    self._forget_worlds()
                    break
                if self._plan_as_before:
                    break
                if self._others_finish:
                    way = None  # They come into this loop in this world.
                    continue
                self._wait_for_all()
                self._forget_worlds()
                way = membership.reform
            except HorovodInternalError as error:
                if not self._recovery.broken(error):
                    raise
                way = membership.reform
        self._session.again = self

    def _all_are_here(self) -> bool:
        """Say whether all are between two steps, as this worker is.

        Others may be in the next step already, as it was planned before this world; or still in the last one, and turn
        to the world that it is followed by when they have finished it.
        """
        comparison = self._recovery.compare()
        self._plan_as_before = comparison.others_inside
        self._shadows_before = comparison.shadows
        self._others_finish = comparison.others_before
        if not self._plan_as_before:
            self._forget_worlds()
        return not (comparison.others_inside or comparison.others_behind or comparison.others_before)

    def _make_alike(self) -> None:
        session, world = self._session, self._session.world
        standing = msgspec.msgpack.encode((self._number, self._has_state))
        standings = [msgspec.msgpack.decode(each) for each in session.exchange("elastic.trained", standing)]
        self._check_loop([number for number, _ in standings])
        holders = [rank for rank, (_, has_state) in enumerate(standings) if has_state]
        if not holders:
            self._begin()
        sources = holders or [0]
        receivers = [rank for rank in range(world.size) if rank not in sources]
        if receivers:
            self._give_state(sources, receivers, may_stream=bool(holders) and self._can_have_shadows())
        everyone = session.exchange("elastic.progress", msgspec.msgpack.encode(self._progress()))
        if world.rank in receivers:
            self._take(msgspec.msgpack.decode(everyone[sources[0]], type=Progress))
        elif everyone[world.rank] != everyone[sources[0]]:
            raise AssertionError("survivors have come to different states; this is a bug of farandole")
        if not (self._has_state or (self._shadows and world.rank in receivers)):
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
        if self._stream is None:
            self._stream = self._trained.transfer(sources, receivers, may_stream=may_stream)
            self._step_began = time.monotonic()
        else:
            self._stream.finish()
            self._stream = None
            self._stopping = self._stopping and self._has_state
        self._shadows = 0 if self._stream is None else len(receivers)

    def _can_have_shadows(self) -> bool:
        """Say whether somebody may go through the steps here who has not got the state yet."""
        body_has_calls = self._body_has_calls or self._made_calls
        keeps_gradients = self._session.settings.elastic_keep_gradients
        return self._elastic and keeps_gradients and self._trained.reduces_once and not body_has_calls

    def _begin(self) -> None:
        """Nobody holds the state: rank 0's becomes everyone's, which is the last checkpoint's if there is one.

        Raises:
            StateLostError: there was a state, and it is lost.
        """
        world = self._session.world
        self._first_batch = sum(self._loader.counts(world.size))
        saved = self._trained.load() if world.rank == 0 else None
        found = any(self._session.exchange("elastic.checkpoint", b"" if saved is None else b"1"))
        # Others that said so are no reason.
        lost = [who for who in world.lost if StateLostError.__name__ not in who]
        if world.state_lost and not found:
            raise StateLostError(
                f"all workers that held the state of the training are lost ({'; '.join(lost) or 'earlier'}), and "
                "there is no checkpoint. Start the job again; with --checkpoint-dir DIR --resume auto it would go on."
            )
        if saved is not None:
            self._take(msgspec.msgpack.decode(saved, type=Progress))

    def _progress(self) -> Progress:
        return Progress(
            self._step,
            self._recovery.calls,
            self._loader.ledger,
            self._first_batch,
            self._factor,
            self._body_has_calls,
            self._outcome.stop,
            self._first_epoch,
        )

    def _take(self, progress: Progress) -> None:
        self._step, self._first_epoch = progress.step, progress.first_epoch
        self._first_batch, self._factor = progress.first_batch, progress.factor
        self._scaled_for = 0
        self._body_has_calls = progress.body_has_calls
        self._outcome = self._outcome._replace(stop=progress.stop)
        self._recovery.catch_up(progress.calls)
        self._loader.ledger = progress.ledger

    def _scale_rate(self, size: int) -> None:
        if size == self._scaled_for:
            return
        policy = based_on_first(self._rate, self._first_batch)
        factor = policy.factor(sum(self._loader.counts(size)), size)
        if factor != self._factor:
            self._trained.scale_rate(factor / self._factor)
            self._factor = factor
        self._scaled_for = size


def _count(share: Sequence[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in share)
