"""Recovery of a step: the survivors finish it in the next world when the world breaks in the middle of it.

All ranks make the same blocking calls in the same order, and none can finish a call before all have begun it. So when
the world breaks, any two survivors are in the same call or in neighbouring ones. If a call has a result on some ranks,
these ranks send it to the others. If no rank has finished a call, all ranks repeat it.

The reduction of a step's gradients is such a call. When it has a result, the step counts, and each rank applies the
result by itself. The ranks' *ballots* are sent with the gradients: for example, whether the world should change after
the step. Reduced gradients are large, so they are not copied for ranks that might need them: they stay where they are
until the next call has a result. If they may be changed before that, all ranks *meet* once more after the reduction.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import msgspec

from farandole.base import portable
from farandole.base.request_kind import Kind
from farandole.base.wire.rendezvous import World
from farandole.errors import HorovodInternalError, InvalidRequestError, MismatchError
from farandole.worker.core.dtype import DType, Max
from farandole.worker.core.request import make_request
from farandole.worker.core.retry import Gradients
from farandole.worker.core.session import Session
from farandole.worker.core.submission import Submission
from farandole.worker.elastic import world_changes

Result = TypeVar("Result")


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a worker."""

    calls: int
    """The number of blocking calls that have a result, since the job began."""
    step: int
    """The number of steps that count, since the job began."""
    inside: bool
    """Whether the worker is in the middle of a step, or has finished the last one."""
    trained: bool
    """Whether the worker has the job's state; all other fields are valid only for workers that do."""
    can_give: bool
    """Whether the worker can send the result of its last call to others."""
    shadows: int
    """The number of ranks that are not in the plan of its step, because they do not have the state yet."""
    training: int
    """The number of its training among the script's, from 1. The fields above are about this training only."""


class Ballot(NamedTuple):
    """A rank's requests to all ranks when the step counts."""

    change: bool
    """Whether the world should change after this step."""
    stop: bool
    """Whether the training should end after this step."""
    save: bool
    """Whether a checkpoint should be written after this step."""
    calls: bool
    """Whether the body of the loop makes calls that all ranks must make."""
    meet: bool
    """Whether no rank may continue before all have their reduced gradients."""


NOTHING_ASKED = Ballot(change=False, stop=False, save=False, calls=False, meet=False)


class _Result(NamedTuple):
    """The result of a call, as it is sent to ranks that lack it."""

    value: Any
    with_gradients: bool
    """Whether the reduced gradients are a part of it, and follow it."""


class Comparison(msgspec.Struct, frozen=True):
    """How a rank's progress compares with that of the other members of its world."""

    known: tuple[Any] | None = None
    """The result of the call that this rank is in, if others have it."""
    behind: bool = False
    """Whether others are in a later step."""
    others_behind: bool = False
    """Whether others are in an earlier step."""
    others_inside: bool = False
    """Whether others are in the middle of the furthest step, or have finished the last one."""
    shadows: int = 0
    """The number of ranks that are not in the plan of that step."""
    others_before: bool = False
    """Whether others are still in the training before this one."""


class Listener(Protocol):
    """The loop that takes the steps."""

    def position(self, calls: int, can_give: bool) -> Position:
        """Return the progress of this worker."""

    def reformed(self, before: World) -> None:
        """Called when the world has changed in the middle of a step."""

    def resumed(self, comparison: Comparison, counts: bool) -> None:
        """Continue the step in the new world; `counts`: whether it already counted in the previous world."""

    def hand_over(self, gradients: Gradients | None, sources: Sequence[int], receivers: Sequence[int]) -> None:
        """Send the receivers the reduced gradients, which all sources have. A collective of the world."""


class Recovery:
    """Repeats the broken calls of one session."""

    def __init__(self, session: Session, listener: Listener) -> None:
        """Create the object for a session."""
        self._session = session
        self._elastic = world_changes.is_elastic()
        self._listener = listener
        self._calls = 0
        self._last: Any = None
        """The result of the last call, for ranks that lack it."""
        self._last_gradients: Gradients | None = None
        """Data that belongs to that result."""
        self._votes = _Votes()

    def run(
        self,
        call: Callable[[], Result],
        restore: Callable[[], None] | None = None,
        adopt: Callable[[Result], Result] | None = None,
        *,
        counts: bool = False,
    ) -> Result:
        """Repeat a call until it has a result, as `farandole.worker.core.retry.Retry` describes.

        Args:
            counts: whether the step counts when the call has a result.
        """
        while True:
            try:
                return self._done(call())
            except HorovodInternalError as error:
                if not self.broken(error):
                    raise
            if restore is not None:
                restore()
            known = self._next_world(counts)
            if known is not None:
                return self._done(known[0] if adopt is None else adopt(known[0]))

    def vote(self, ballot: Ballot) -> Ballot:
        """Count a step without gradients, once all ranks have reached it; return the requests of all ranks together."""
        return Ballot(*self.run(lambda: self.meet(ballot), counts=True))

    def meet(self, ballot: Ballot) -> Ballot:
        """Take part in the collective of `vote`, or of `reduced` if ranks meet; it is not repeated in another world.

        Raises:
            HorovodInternalError: the world has ended.
        """
        return self._votes.count(self._session, ballot)

    def reduced(self, outcome: Ballot, gradients: Gradients) -> None:
        """Record that this rank has the reduced gradients of the step."""
        self._done(outcome, gradients)
        if outcome.meet:
            self.run(lambda: self.meet(outcome))

    def recover(self, gradients: Gradients) -> Ballot | None:
        """Enter the next world, if this one has ended, while gradients are being reduced.

        Returns:
            The ranks' requests, if other ranks had the reduced gradients, which this rank now also has.
        """
        if not self._elastic or self._session.engine.cause() is None:
            return None
        known = self._next_world(counts=True, lacking=gradients)
        return None if known is None else Ballot(*known[0])

    def broken(self, error: Exception) -> bool:
        """Return whether a call has failed because its world has ended, and there can be another world."""
        # Ranks that disagree about a call would disagree in the next world as well.
        return self._elastic and isinstance(error, HorovodInternalError) and not isinstance(error, MismatchError)

    def compare(self, lacking: Gradients | None = None) -> Comparison:
        """Exchange the progress of the members of a new world. A collective.

        Args:
            lacking: the gradients that this rank is about to reduce; others may have reduced them.

        Raises:
            HorovodInternalError: this world has broken as well.
            InvalidRequestError: no rank can send this rank the result that it lacks.
        """
        own = self._listener.position(self._calls, self._can_give())
        texts = self._session.exchange("elastic.positions", msgspec.msgpack.encode(own))
        everyone = [msgspec.msgpack.decode(text, type=Position) for text in texts]
        latest = max(position.training for position in everyone)
        if own.training < latest:
            # They could not have begun another training before all ranks had reached the last call of this one.
            return Comparison(known=(NOTHING_ASKED,))
        before = any(position.trained and position.training < latest for position in everyone)
        trained = {
            rank: position for rank, position in enumerate(everyone) if position.trained and position.training == latest
        }
        if not trained:
            return Comparison(others_before=before)
        known = self._give(trained, lacking)
        step = max(position.step for position in trained.values())
        inside = [position for position in trained.values() if position.inside and position.step == step]
        return Comparison(
            known,
            behind=step > own.step,
            others_behind=any(position.step < own.step for position in trained.values()),
            others_inside=bool(inside),
            shadows=max((position.shadows for position in inside), default=0),
            others_before=before,
        )

    def catch_up(self, calls: int) -> None:
        """Adopt the call count of the other ranks, from which this rank has just received the state."""
        self._calls = calls

    @property
    def calls(self) -> int:
        """The number of blocking calls that have a result, since the job began."""
        return self._calls

    def _done(self, result: Result, gradients: Gradients | None = None) -> Result:
        self._calls += 1
        self._last, self._last_gradients = result, gradients
        return result

    def _can_give(self) -> bool:
        return self._last_gradients is None or self._last_gradients.are_intact()

    def _give(self, trained: dict[int, Position], lacking: Gradients | None) -> tuple[Any] | None:
        """Send the result of a call to the ranks that are still in it; return it on these. A collective."""
        session = self._session
        rank = session.world.rank
        furthest = max(each.calls for each in trained.values())
        behind = [number for number, each in trained.items() if each.calls < furthest]
        receivers = [number for number in behind if trained[number].calls == furthest - 1]
        sources = [number for number, each in trained.items() if each.calls == furthest and each.can_give]
        if rank in behind and not (sources and rank in receivers):
            raise InvalidRequestError(
                "the other ranks have finished the call that this worker was in the middle of, and cannot give it "
                "the result: "
                "they have changed gradients in place since, or are ahead by more than one call. It must be started "
                "again."
            )
        if not (sources and receivers):
            return None
        gradients = lacking if rank in receivers else self._last_gradients
        told = portable.dumps(_Result(self._last, gradients is not None)) if rank == sources[0] else b""
        result: _Result = cloudpickle.loads(session.exchange("elastic.result", told)[sources[0]])
        if result.with_gradients:
            self._listener.hand_over(gradients, sources, receivers)
        return (result.value,) if rank in receivers else None

    def _next_world(self, counts: bool, lacking: Gradients | None = None) -> tuple[Any] | None:
        """Enter the next world; return the result of the call that this rank is in, if another rank has it."""
        while True:
            before = self._session.world
            world_changes.reform(open=False)
            self._listener.reformed(before)
            try:
                comparison = self.compare(lacking)
            except HorovodInternalError as error:
                if not self.broken(error):
                    raise
                continue
            self._listener.resumed(comparison, counts=counts and comparison.known is not None)
            return comparison.known


class _Votes:
    """The ballots as one byte for each question, reduced to the maximum, in a reusable request."""

    def __init__(self) -> None:
        questions = len(Ballot._fields)
        self._bytes = (ctypes.c_uint8 * questions)()
        address = ctypes.addressof(self._bytes)
        request = make_request(
            Kind.ALLREDUCE, "elastic.vote", dtype=DType.U8, op=Max, shape=(questions,), input=address, output=address
        )
        self._submission = Submission((request,))

    def count(self, session: Session, ballot: Ballot) -> Ballot:
        """Return the requests of all ranks together, once all have reached this point. A collective."""
        self._bytes[:] = list(ballot)
        try:
            session.engine.run(self._submission)
        finally:
            if self._submission.submitted:
                session.engine.release(self._submission)
        return Ballot(*map(bool, self._bytes))
