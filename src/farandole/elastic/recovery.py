"""What goes on in the middle of a step when the world breaks: the survivors finish the step in the next one.

All ranks make the same blocking calls in the same order, and none can finish a call before all have begun it. So when
the world breaks, each survivor is in the call that the others are in, or in the next one: then the others' call has a
result, and those who have it give it to those who do not. A call that nobody has finished is made again by all.

The last call of a step is the *vote*. Its result says whether the world is to change at the end of this step; that
there is one means that every rank has had all its gradients, so the step counts, and each applies it by itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import msgspec

from farandole.core.again import StepBroken
from farandole.core.dtype import DType, Kind, Max
from farandole.core.errors import HorovodInternalError, MismatchError
from farandole.core.rendezvous import World
from farandole.core.request import make_request
from farandole.core.session import Session
from farandole.core.submission import Submission
from farandole.elastic import membership

Result = TypeVar("Result")


class Position(msgspec.Struct, frozen=True, array_like=True):
    """How far a worker has come."""

    calls: int
    """Blocking calls that have a result, since the job began."""
    step: int
    """Steps that count, since the job began."""
    inside: bool
    """Whether it is in the middle of a step, or behind the last one."""
    trained: bool
    """Whether it holds the job's state; the rest is only about those who do."""


class Ballot(NamedTuple):
    """What a rank votes for, besides letting the step count."""

    change: bool
    """The world is to change after this step."""
    stop: bool
    """The training is to end after this step."""
    save: bool
    """A checkpoint is to be written after this step."""
    calls: bool
    """The body of the loop makes calls that all ranks have to make."""


class Comparison(msgspec.Struct, frozen=True):
    """What the members of a world have found out about each other."""

    known: tuple[Any] | None
    """The result of the call that this rank is in, if others have it."""
    behind: bool
    """Whether others are in a later step."""
    others_behind: bool
    """Whether others are in an earlier step."""
    others_inside: bool
    """Whether others are in the middle of the furthest step, or behind the last one."""


class Listener(Protocol):
    """Who takes the steps."""

    def position(self, calls: int) -> Position:
        """Return how far this worker has come."""

    def reformed(self, before: World) -> None:
        """Another world has followed this one in the middle of a step."""

    def resumed(self, comparison: Comparison, counts: bool) -> None:
        """The step goes on in that world; `counts`: it counts already, as it was in the world before."""


class Recovery:
    """Makes broken calls again, in one session."""

    def __init__(self, session: Session, listener: Listener) -> None:
        """Recover nothing yet."""
        self._session = session
        self._elastic = membership.is_elastic()
        self._listener = listener
        self._calls = 0
        self._last: Any = None
        """Result of the last call, for a rank that has not got it."""
        self._vote = _Vote()

    def run(
        self,
        call: Callable[[], Result],
        restore: Callable[[], None] | None = None,
        adopt: Callable[[Result], Result] | None = None,
    ) -> Result:
        """See `farandole.core.again.Again`."""
        while True:
            try:
                return self._done(call())
            except HorovodInternalError as error:
                if not self.broken(error):
                    raise
            if restore is not None:
                restore()
            known = self._next_world(vote=False)
            if known is not None:
                return self._done(known[0] if adopt is None else adopt(known[0]))

    def vote(self, ballot: Ballot) -> Ballot:
        """Let the step count, once all ranks have come so far; return what any of them has voted for.

        Raises:
            StepBroken: the world has broken, and no rank has seen the end of the vote: gradients are to be reduced
                again, in the next world, which this worker has entered.
        """
        try:
            return self._done(self._vote.run(self._session, ballot))
        except HorovodInternalError as error:
            if not self.broken(error):
                raise
            known = self._next_world(vote=True)
            if known is None:
                raise StepBroken(str(error)) from error
        return self._done(Ballot(*known[0]))

    def recover(self) -> None:
        """See `farandole.core.again.Again`."""
        if self._elastic and self._session.engine.cause() is not None:
            known = self._next_world(vote=False)
            # Who reduces gradients has begun no vote, and so nobody has finished it.
            assert known is None, "another rank is ahead by a call that this one has not begun"

    def broken(self, error: Exception) -> bool:
        """Say whether it was the end of its world that a call has failed with, and there can be another world."""
        # Ranks that ask for different things would do so in the next world as well.
        return self._elastic and isinstance(error, HorovodInternalError) and not isinstance(error, MismatchError)

    def compare(self) -> Comparison:
        """Find out how far the members of a new world have come. A collective.

        Raises:
            HorovodInternalError: this world has broken as well.
        """
        session = self._session
        own = self._listener.position(self._calls)
        texts = session.exchange("elastic.positions", msgspec.msgpack.encode(own))
        everyone = [msgspec.msgpack.decode(text, type=Position) for text in texts]
        trained = [position for position in everyone if position.trained]
        if not trained:
            return Comparison(None, behind=False, others_behind=False, others_inside=False)
        furthest = max(position.calls for position in trained)
        results: list[bytes] = []
        holder = next(rank for rank, each in enumerate(everyone) if each.trained and each.calls == furthest)
        if any(position.calls < furthest for position in trained):
            results = session.exchange(
                "elastic.result", cloudpickle.dumps(self._last) if session.world.rank == holder else b""
            )
        step = max(position.step for position in trained)
        return Comparison(
            (cloudpickle.loads(results[holder]),) if own.trained and own.calls < furthest else None,
            behind=step > own.step,
            others_behind=any(position.step < own.step for position in trained),
            others_inside=any(position.inside and position.step == step for position in trained),
        )

    def catch_up(self, calls: int) -> None:
        """Count as the others do; for who has just got the state from them."""
        self._calls = calls

    @property
    def calls(self) -> int:
        """Blocking calls that have a result, since the job began."""
        return self._calls

    def _done(self, result: Result) -> Result:
        self._calls += 1
        self._last = result
        return result

    def _next_world(self, vote: bool) -> tuple[Any] | None:
        """Enter the next world; return the result of the call that this rank is in, if another rank has it."""
        while True:
            before = self._session.world
            membership.reform(open=False)
            self._listener.reformed(before)
            try:
                comparison = self.compare()
            except HorovodInternalError as error:
                if not self.broken(error):
                    raise
                continue
            self._listener.resumed(comparison, counts=vote and comparison.known is not None)
            return comparison.known


class _Vote:
    """One byte for each question, of which all get the maximum: one request, made once, because every step has it."""

    def __init__(self) -> None:
        questions = len(Ballot._fields)
        self._bytes = (ctypes.c_uint8 * questions)()
        address = ctypes.addressof(self._bytes)
        request = make_request(
            Kind.ALLREDUCE, "elastic.vote", dtype=DType.U8, op=Max, shape=(questions,), input=address, output=address
        )
        self._submission = Submission((request,))

    def run(self, session: Session, ballot: Ballot) -> Ballot:
        self._bytes[:] = list(ballot)
        try:
            session.engine.run(self._submission)
        finally:
            if self._submission.submitted:
                session.engine.release(self._submission)
        return Ballot(*map(bool, self._bytes))
