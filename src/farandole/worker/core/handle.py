"""Calls, which keep their memory alive while the engine works, and produce their results.

A front end makes one `Pending` for each call. An asynchronous call gets a number, an int as in Horovod, which is the
user's handle. The table keeps the call, and so its tensors, until the user fetches the result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from farandole.worker.core.engine import Engine
from farandole.worker.core.gpu_stream import GpuStream
from farandole.worker.core.submission import Submission

# Numbers are never used twice in a process: after a shutdown, an older handle is unknown, and names no other call.
_numbers = itertools.count(1)


class InFlight(Protocol):
    """A call whose memory the engine may be using."""

    def begun(self) -> bool:
        """Return whether the call has been submitted, so that other ranks may rely on it."""

    def done(self) -> bool:
        """Return whether the call is done, successfully or with an error."""


class AsyncCall(InFlight, Protocol):
    """A call, from its creation to its result: `submit`, `wait` and `result`, each once."""

    def submit(self) -> None:
        """Start the call, or raise the reason why it cannot start."""

    def wait(self) -> None:
        """Wait until the call is done, successfully or with an error. An interrupted wait can be repeated."""

    def result(self) -> Any:
        """Return the result of a call that is done, or raise its error."""


class Call(AsyncCall, Protocol):
    """A call that can also be made by `run` alone."""

    def run(self) -> Any:
        """Submit, wait and return the result, or raise the error."""


class Pending:
    """A call of native requests, which are submitted and waited for together."""

    __slots__ = ("_engine", "_error", "_finish", "_submission")

    def __init__(self, engine: Engine, submission: Submission, finish: Callable[[Any], Any]) -> None:
        """Own a submission until its result has been made.

        Args:
            engine: the engine to submit to.
            submission: the requests.
            finish: a function that makes the result from the native handles once all are done. It holds the memory that
                the engine uses until then.
        """
        self._engine = engine
        self._submission: Submission | None = submission
        self._finish = finish
        self._error: Exception | None = None

    def submit(self) -> None:
        """Submit the requests, all or none."""
        assert self._submission is not None
        self._engine.submit(self._submission)

    def make_in_turn(self) -> None:
        """Make the requests wait for earlier ones of their names, which may be in flight; before `submit`."""
        assert self._submission is not None
        self._submission.make_in_turn()

    def wait(self) -> None:
        """Wait until all requests are done."""
        assert self._submission is not None
        try:
            self._engine.wait(self._submission)
        except Exception as error:
            self._error = error

    def run(self) -> Any:
        """Submit the requests, wait for them, and return the result, or raise the first error."""
        submission = self._submission
        assert submission is not None
        try:
            self._engine.run(submission)
        except Exception as error:
            if not submission.submitted:
                raise
            self._error = error
        return self.result()

    def result(self) -> Any:
        """Return the result of requests that are done, and release them; raise the first error if any failed."""
        submission, error = self._submission, self._error
        assert submission is not None
        try:
            if error is not None:
                raise error
            return self._finish(submission.handles)
        finally:
            self._submission = self._error = None
            self._engine.release(submission)
            submission.put_back()

    def begun(self) -> bool:
        """Return whether the engine has, or has had, the requests."""
        return self._submission is None or self._submission.submitted

    def done(self) -> bool:
        """Return whether all requests are done."""
        return self._submission is None or self._engine.done(self._submission)


class Launched(Pending):
    """A call of tensors of GPUs. A stream waits for its result, so the calling thread need not wait for the GPU."""

    __slots__ = ("_streams",)

    def __init__(
        self,
        engine: Engine,
        submission: Submission,
        finish: Callable[[Any], Any],
        streams: Callable[[], Iterable[GpuStream]],
    ) -> None:
        """Initialize as `Pending` does; `streams` returns the streams that await the result, in the waiting thread."""
        super().__init__(engine, submission, finish)
        self._streams = streams

    def wait(self) -> None:
        """Wait until all requests are launched, and let the streams wait for their results."""
        assert self._submission is not None
        try:
            for stream in self._streams():
                self._engine.wait_on(self._submission, stream)
        except Exception as error:
            self._error = error

    def run(self) -> Any:
        """Submit the requests, wait until they are launched, and return the result, or raise the first error."""
        self.submit()
        self.wait()
        return self.result()


class Known:
    """A call that needs no communication, because its result is known from the beginning."""

    __slots__ = ("_result",)

    def __init__(self, result: Any) -> None:
        self._result = result

    def submit(self) -> None:
        """Do nothing: there is no work to submit. `wait` does nothing either."""

    wait = submit

    def result(self) -> Any:
        """Return the result."""
        return self._result

    run = result

    def begun(self) -> bool:
        """Return True."""
        return True

    done = begun


class HandleTable:
    """The calls in flight of one session, by the users' handles."""

    def __init__(self) -> None:
        # Without a lock: each access is one step of a dict or a list.
        self._calls: dict[int, AsyncCall] = {}
        # Blocking calls whose wait was interrupted while they were in flight. They have no handles.
        self._interrupted: list[InFlight] = []

    def begin(self, call: AsyncCall) -> int:
        """Submit a call, keep it, and return its handle."""
        number = next(_numbers)
        # Kept before it is submitted: Ctrl-C may come at any moment, and the engine must not lose the memory.
        self._calls[number] = call
        try:
            call.submit()
        except BaseException:
            if not call.begun():
                del self._calls[number]
            raise
        return number

    def run(self, call: Call) -> Any:
        """Submit a call, wait for it and return its result. If interrupted, the call is kept while it is in flight."""
        try:
            return call.run()
        except BaseException:
            self.keep_in_flight(call)
            raise

    def keep_in_flight(self, call: InFlight) -> None:
        """Keep a call whose wait has ended, and so its memory, if the engine may still use it."""
        if call.begun() and not call.done():
            self._interrupted.append(call)

    def poll(self, number: int) -> bool:
        """Return whether `synchronize` would return at once.

        Raises:
            ValueError: there is no such call, or its result was already taken.
        """
        call = self._calls.get(number)
        if call is None:
            raise ValueError(f"Handle {number} was not created or has been cleared.")
        return call.done()

    def synchronize(self, number: int) -> Any:
        """Wait for a call and return its result; None for an unknown handle, as in Horovod."""
        call = self._calls.get(number)
        if call is None:
            return None
        call.wait()
        # Of several threads that wait for one call, one gets the result.
        if self._calls.pop(number, None) is None:
            return None
        return call.result()

    def clear(self) -> None:
        """Drop all calls and their tensors. None of them may still be running."""
        self._calls.clear()
        self._interrupted.clear()
