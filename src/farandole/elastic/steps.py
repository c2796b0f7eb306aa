"""The loop of a training whose workers come and go.

A step is taken under a *plan*: which ranks read which samples, made from the ledger and the world that there was. When
ranks are lost before the step counts, the plan stays, their part of it is given back to the ledger, and the others'
gradients are weighted by the samples that are left. The next step is planned for the world that there is then.

A rank that learns only from others that a step counts (see `recovery`) takes the following step by the plan that they
have made meanwhile, in the world of before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from farandole.core import basics
from farandole.core.again import Gradients
from farandole.core.errors import EvictedError, HorovodInternalError, InvalidRequestError, StateLostError
from farandole.core.rendezvous import World
from farandole.core.worlds import goodbye
from farandole.elastic import membership
from farandole.elastic.batches import RatePolicy, based_on_first
from farandole.elastic.ledger import Ledger
from farandole.elastic.recovery import Ballot, Comparison, Position, Recovery

Result = TypeVar("Result")


class Batch(Protocol):
    """What one rank works on in one step."""

    data: Any
    """None if this rank has no samples."""
    samples: int
    total: int
    """Samples of all ranks."""
    shares: Sequence[Any]
    """Of all ranks, as ranges of positions."""


class Loader(Protocol):
    """Where the samples come from; see `farandole.torch.elastic.ElasticLoader`."""

    ledger: Ledger

    def counts(self, world_size: int) -> tuple[int, ...]:
        """Return how many samples each rank takes in a full step."""

    def next(self, world_size: int, rank: int) -> Any:
        """Return the batch of a rank in a world, or None at the end of the epoch."""

    def borrow(self, batch: Any) -> Any:
        """Return some other rank's data of a step in which this rank has none; None if it cannot be had."""

    def commit(self, batch: Any, lost: Collection[int] = ()) -> None:
        """Count the samples as used, but for those of lost ranks."""

    def next_epoch(self) -> None:
        """Begin the next epoch."""


class Trained(Protocol):
    """What is trained, in terms of a framework."""

    needs_body: bool
    """Only the body of the loop knows what a step is: `step_without_samples` may not be what it is elsewhere."""
    reduces_once: bool
    """A step has one reduction of gradients."""

    def transfer(self, sources: Sequence[int], receivers: Sequence[int]) -> None:
        """Give the receivers the state that each of the sources has. A collective of both."""

    def hand_over(self, gradients: Gradients | None, sources: Sequence[int], receivers: Sequence[int]) -> None:
        """Give the receivers the reduced gradients that each of the sources has. A collective of the world.

        Args:
            gradients: of a step; None on ranks that are neither.
            sources: ranks that have them.
            receivers: ranks that are to get them.
        """

    def step_without_samples(self) -> None:
        """Take part in a step with gradients of zero."""

    def scale_rate(self, factor: float) -> None:
        """Multiply the learning rates."""

    def is_due(self, step: int) -> bool:
        """Say whether a checkpoint is to be written after a step."""

    def save(self, progress: bytes, step: int, epoch: int, world: World) -> None:
        """Begin to write a checkpoint, on all ranks of a world."""

    def load(self) -> bytes | None:
        """Read the last checkpoint, if there is one and it is wanted; return the progress that was saved with it."""

    def close(self) -> None:
        """Wait for a checkpoint that is being written."""


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


class _Plan:
    """One step: who reads what, and who is still there to do it."""

    def __init__(self, batch: Batch, world: World) -> None:
        self.batch = batch
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
        self.lost = frozenset(range(self._world.size)).difference(self.present)

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
        epochs: how often to go through the samples, counted from the beginning of the job.
        rate: what the learning rate does as the world changes.
    """

    def __init__(self, loader: Loader, trained: Trained, *, epochs: int, rate: RatePolicy) -> None:
        self._loader = loader
        self._trained = trained
        self._epochs = epochs
        self._rate = rate
        self._session = basics.current()
        self._elastic = membership.is_elastic()
        self._recovery = Recovery(self._session, self)
        self._plan: _Plan | None = None
        self._share = 1.0
        self._before: World | None = None
        """The world in which the current plan was made, or the others have made the next one; None: that of now."""
        self._plan_as_before = False
        """The others have planned the next step already, in the world of before."""
        self._finishing = False
        """There is no other step."""
        self._stopping = False
        """This rank has been asked to stop."""
        self._outcome = Ballot(change=False, stop=False, save=False, calls=False, meet=False)
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
        self._step = 0
        self._first_batch = 0
        self._factor = 1.0
        self._scaled_for = 0
        """The size of the world that the factor is for; 0: it is to be found out."""

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of this worker.

        Raises:
            SystemExit: this worker is not wanted any more; it has said so.
        """
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
    def step(self) -> int:
        """Steps that count, since the job began."""
        return self._step

    # --- steps -------------------------------------------------------------------------------------------------

    def _steps(self) -> Iterator[Any]:
        self._enter(membership.arrive if self._elastic else None)
        while self._loader.ledger.epoch < self._epochs and not self._outcome.stop:
            plan = self._next_plan()
            if plan is None:
                self._loader.next_epoch()
                continue
            yield from self._one_step(plan)
            self._commit(plan)
            if self._outcome.change and not self._outcome.stop:
                # Who has learnt of it in another world has no others to wait for: they have turned away.
                if not self._plan_as_before:
                    self._wait_for_all()
                self._enter(membership.reform)
        self._plan, self._counts = None, False
        self._finish_together()

    def _next_plan(self) -> _Plan | None:
        now = self._session.world
        world = self._before if self._plan_as_before and self._before is not None else now
        batch = self._loader.next(world.size, world.rank)
        if batch is None:
            return None
        self._scale_rate(world.size)
        plan = _Plan(batch, world)
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
            self._share = plan.share(self._session.world.rank)
            data = plan.batch.data
            if data is None and self._needs_body():
                data = self._loader.borrow(plan.batch)
            if data is None:
                self._trained.step_without_samples()
            else:
                yield data
                self._knows_body = True
            if not self._again:
                break
        if not self._counts:
            self._vote()

    def _needs_body(self) -> bool:
        """Say whether the body of the loop has to run on all ranks, as there are calls in it that all have to make."""
        # Of the first step nobody knows that yet.
        has_calls = self._body_has_calls or self._made_calls
        return self._step == 0 or has_calls or self._trained.needs_body

    def _commit(self, plan: _Plan) -> None:
        self._plan = None
        self._loader.commit(plan.batch, plan.lost)
        self._step += 1
        # The others have begun theirs in the world of before: the parts of two worlds make no checkpoint.
        if self._outcome.save and not self._plan_as_before:
            progress = msgspec.msgpack.encode(self._progress())
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
            InvalidRequestError: broken steps are given out again, which ranks do at different times.
        """
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
        # One rank's clock says when a checkpoint is due.
        due = self._session.world.rank == 0 and self._trained.is_due(self._step + 1)
        notices = self._session.notices
        changes = notices is not None and notices.change is not None
        return Ballot(changes, self._stopping, due, self._made_calls, meet)

    def count(self, outcome: Sequence[bool], gradients: Gradients) -> None:
        """See `Again`."""
        asked = Ballot(*outcome)
        self._take_note(asked)
        self._recovery.reduced(asked, gradients)

    def recover(self, gradients: Gradients) -> bool:
        """See `Again`."""
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
        self._take_note(self._recovery.vote(self.ballot(meet=False)))

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
        return Position(calls, self._step, inside, self._session.trained, can_give)

    def reformed(self, before: World) -> None:
        """See `Listener`."""
        self._before = self._before or before

    def resumed(self, comparison: Comparison, counts: bool) -> None:
        """See `Listener`."""
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
        self._before, self._plan_as_before = None, False

    # --- worlds between two steps -------------------------------------------------------------------------------

    def _enter(self, way: Callable[[], World] | None) -> None:
        """Enter a world, and make all its members alike."""
        # What is called from here on is not a part of a step.
        self._session.again = None
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
        if not self._plan_as_before:
            self._forget_worlds()
        return not (comparison.others_inside or comparison.others_behind)

    def _make_alike(self) -> None:
        session, world = self._session, self._session.world
        flags = session.exchange("elastic.trained", b"1" if session.trained else b"")
        sources = [rank for rank, flag in enumerate(flags) if flag]
        if not sources:
            self._begin()
            sources = [0]
        receivers = [rank for rank in range(world.size) if rank not in sources]
        if receivers:
            self._trained.transfer(sources, receivers)
        everyone = session.exchange("elastic.progress", msgspec.msgpack.encode(self._progress()))
        if world.rank in receivers:
            self._take(msgspec.msgpack.decode(everyone[sources[0]], type=Progress))
        elif everyone[world.rank] != everyone[sources[0]]:
            raise AssertionError("survivors have come to different states; this is a bug of farandole")
        if not session.trained and self._elastic:
            membership.trained()

    def _begin(self) -> None:
        """Nobody holds the state: rank 0's becomes everyone's, which is the last checkpoint's if there is one.

        Raises:
            StateLostError: there was a state, and it is lost.
        """
        world = self._session.world
        self._first_batch = sum(self._loader.counts(world.size))
        saved = self._trained.load() if world.rank == 0 else None
        found = any(self._session.exchange("elastic.checkpoint", b"" if saved is None else b"1"))
        if world.state_lost and not found:
            raise StateLostError(
                f"all workers that held the state of the training are lost ({'; '.join(world.lost) or 'earlier'}), and "
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
        )

    def _take(self, progress: Progress) -> None:
        self._step, self._first_batch, self._factor = progress.step, progress.first_batch, progress.factor
        self._scaled_for = 0
        self._body_has_calls = progress.body_has_calls
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
