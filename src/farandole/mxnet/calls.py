"""Calls in the order of MXNet's engine.

A call is an operation of MXNet's engine (`mxnet_engine`): it begins when its arrays are ready, submits its requests to
farandole's engine, and is done when that engine calls its completion callback. No thread waits for it, so MXNet's
threads cannot block each other on different ranks, in whatever order they run the calls.

The functions that users call return as soon as the operation is pushed. The calls in progress are kept here, with their
arrays. None are left when the process ends or forks: MXNet's threads call Python functions, and would wait for Python's
lock forever.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from farandole.mxnet.errors import sentence
from farandole.mxnet.mxnet_engine import Completion, LayoutError, Operations, address
from farandole.mxnet.sent import Sent
from farandole.worker.core import basics
from farandole.worker.core.binding import Callback, NativeRequest
from farandole.worker.core.engine import Engine
from farandole.worker.core.handle import Pending
from farandole.worker.core.session import Session
from farandole.worker.core.status import from_status
from farandole.worker.core.submission import Submission

# How long calls that were begun may still take when the session ends, before they fail.
DRAIN_SECONDS = 5.0
# How long a fork waits for them. A world with a lost worker ends them sooner.
FORK_SECONDS = 60.0


class OrderedCall:
    """A call that MXNet's engine starts when its arrays are ready."""

    __slots__ = (
        "_completion",
        "_engine",
        "_error",
        "_inputs",
        "_left",
        "_number",
        "_outputs",
        "_result",
        "_submission",
    )

    def __init__(
        self, engine: Engine, requests: Sequence[NativeRequest], inputs: Sequence[Sent], finish: Callable[[Any], Any]
    ) -> None:
        """Create the call, without starting it.

        Args:
            engine: farandole's engine.
            requests: one request for each input, without addresses.
            inputs: the arrays that the requests read.
            finish: a function that makes the result from the arrays that the requests write; it may be called before
                these have values.
        """
        self._engine = engine
        self._submission = Submission(requests)
        self._inputs = inputs
        self._result = finish((0,) * len(requests))
        self._outputs = self._result if isinstance(self._result, tuple) else (self._result,)
        # The requests, and `submit` itself: it has to return before their handles can be released.
        self._left = len(requests) + 1
        self._error: str | None = None
        self._completion: Completion | None = None
        self._number = 0

    # --- as `worker.core.handle.Call` ---------------------------------------------------------------------------

    def submit(self) -> None:
        """Push the operation."""
        self._number = under_way.add(self)
        try:
            _operations.push(
                self._number,
                [sent.array for sent in self._inputs],
                [sent.array for sent in self._outputs],
                max(sent.priority for sent in self._inputs),
            )
        except BaseException:
            under_way.remove(self._number)
            self._number = 0
            raise

    def wait(self) -> None:
        """Wait until the outputs have their values."""
        for sent in self._outputs:
            sent.array.wait_to_read()

    def result(self) -> Any:
        """Return the outputs, whose values MXNet's engine waits for when they are read."""
        return self._result

    def run(self) -> Any:
        """Push the operation and return the outputs."""
        self.submit()
        return self._result

    def begun(self) -> bool:
        """Return whether the operation has been pushed."""
        return self._number != 0

    def done(self) -> bool:
        """Return whether the operation is done."""
        return self.begun() and self._number not in under_way

    # --- in MXNet's and the engine's threads -----------------------------------------------------------------------

    def begin(self, completion: Completion) -> None:
        """Submit the requests; called when MXNet no longer uses their arrays."""
        self._completion = completion
        try:
            for request, given, result in zip(self._submission.requests, self._inputs, self._outputs, strict=True):
                request.input, request.output = address(given.array), address(result.array)
                request.callback, request.callback_context = _told, self._number
            self._engine.submit(self._submission)
        except Exception as error:
            self._left = 1
            self._error = f"{type(error).__name__}: {error}" if isinstance(error, LayoutError) else sentence(error)
        self.tell(None)

    def tell(self, error: str | None) -> None:
        """Record that a request is done, or that all are submitted; after the last, complete the operation."""
        with under_way.changed:
            self._error = self._error or error
            self._left -= 1
            if self._left:
                return
        assert self._completion is not None
        if self._submission.submitted:
            self._engine.release(self._submission)
        self._completion(self._error)
        under_way.remove(self._number)


class WaitedCall(Pending):
    """A call that waits for its inputs and for its result.

    The shape of an allgather's or alltoall's result is known only when it has arrived, and MXNet's NaiveEngine runs
    everything synchronously.
    """

    __slots__ = ("_inputs", "_outputs", "_requests")

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[NativeRequest],
        inputs: Sequence[Sent],
        finish: Callable[[Any], Any],
        has_outputs: bool,
    ) -> None:
        """Create the call; `has_outputs`: whether the result can be made before the call."""
        outputs: Sequence[Sent] = ()
        if has_outputs:
            result = finish((0,) * len(requests))
            outputs = result if isinstance(result, tuple) else (result,)
            super().__init__(engine, Submission(requests), lambda _: result)
        else:
            super().__init__(engine, Submission(requests), finish)
        self._inputs, self._outputs = inputs, outputs

    def submit(self) -> None:
        """Wait for the inputs, and submit."""
        self._place()
        super().submit()

    def run(self) -> Any:
        """Wait for the inputs, run the call, and return the result."""
        self._place()
        return super().run()

    def _place(self) -> None:
        assert self._submission is not None
        for sent in (*self._inputs, *self._outputs):
            sent.array.wait_to_read()
        for request, sent in zip(self._submission.requests, self._inputs, strict=True):
            request.input = address(sent.array)
        for request, sent in zip(self._submission.requests, self._outputs, strict=False):
            request.output = address(sent.array)


# --- calls under way -----------------------------------------------------------------------------------------------


class UnderWay:
    """The calls in progress in MXNet's engine, by number; a companion of the session.

    Attributes:
        changed: a condition that protects the calls and this object, and is notified when a call is done.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._calls: dict[int, OrderedCall] = {}
        # Numbers are never used twice, not even in a forked child.
        self._numbers = itertools.count(1)

    def __contains__(self, number: int) -> bool:
        return number in self._calls

    def __getitem__(self, number: int) -> OrderedCall:
        return self._calls[number]

    def add(self, call: OrderedCall) -> int:
        """Keep a call, and return its number."""
        number = next(self._numbers)
        with self.changed:
            self._calls[number] = call
        return number

    def remove(self, number: int) -> None:
        """Remove a call that is done, or was never pushed."""
        with self.changed:
            self._calls.pop(number, None)
            self.changed.notify_all()

    def drain(self, seconds: float) -> bool:
        """Wait until no call is in progress; return whether this was reached in time."""
        deadline = time.monotonic() + seconds
        with self.changed:
            return self.changed.wait_for(lambda: not self._calls, max(0.0, deadline - time.monotonic()))

    # --- as `worker.core.basics.Companion` ----------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        """Do nothing."""

    def closing(self, session: Session) -> None:
        """Wait for the end of the calls, for which other ranks may wait; in a world that has ended, they have ended."""
        self.drain(DRAIN_SECONDS)

    def closed(self) -> None:
        """Wait for the calls that fail now, and for those whose inputs MXNet has not computed yet."""
        self.drain(DRAIN_SECONDS)

    def forgotten(self) -> None:
        """Drop the parent's calls, in a forked child."""
        self.changed = threading.Condition()
        self._calls = {}


under_way = UnderWay()
basics.accompany(under_way)
# Before a fork, MXNet waits for its threads, and holds Python's lock meanwhile.
os.register_at_fork(before=lambda: under_way.drain(FORK_SECONDS))


def _begin(number: int, completion: Completion) -> None:
    under_way[number].begin(completion)


def _tell(number: int | None, handle: int, status: int, error: bytes | None, lost_rank: int) -> None:
    assert number is not None
    under_way[number].tell(None if status == 0 else sentence_of(status, error, lost_rank))


def sentence_of(status: int, error: bytes | None, lost_rank: int) -> str:
    """Return the text of MXNet's error for a native status."""
    return sentence(from_status(status, (error or b"").decode(errors="replace"), lost_rank))


_operations = Operations("farandole", _begin)
_told = Callback(_tell)
