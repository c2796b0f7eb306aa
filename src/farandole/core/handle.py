"""Calls in flight: what keeps their memory alive, and how their results are made.

A front end makes one `Pending` for each call and gives the user its number, an int as in Horovod. The table holds the
call until the user asks for the result, so its tensors live while the engine works on them, whatever the user drops.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from farandole.core.engine import Engine

# Numbers are never used twice in a process: a handle from before a shutdown is unknown after it, not somebody else's.
_numbers = itertools.count(1)


class Call(Protocol):
    """A call in flight."""

    def done(self) -> bool:
        """Say whether the result is there."""

    def result(self) -> Any:
        """Wait for the result and return it, or raise why there is none."""


class Pending:
    """A call in flight: one or more native requests that are waited for together."""

    __slots__ = ("_engine", "_finish", "_handles")

    def __init__(self, engine: Engine, handles: Sequence[int], finish: Callable[[Sequence[int]], Any]) -> None:
        """Take over `handles`.

        Args:
            engine: where they were submitted.
            handles: the native handles; released when the result has been made.
            finish: makes the result from the handles once all are done. It holds whatever must stay alive until then.
        """
        self._engine = engine
        self._handles = handles
        self._finish = finish

    def done(self) -> bool:
        """Say whether the result is there."""
        return all(map(self._engine.done, self._handles))

    def result(self) -> Any:
        """Wait for all requests, release them, and return the result; raise the first error if any failed.

        Interrupted by Ctrl-C, the call stays in flight and can be waited for again.
        """
        error: Exception | None = None
        for handle in self._handles:
            try:
                self._engine.wait(handle)
            except Exception as this:
                error = error or this
        try:
            if error is not None:
                raise error
            return self._finish(self._handles)
        finally:
            for handle in self._handles:
                self._engine.release(handle)


class Deferred:
    """A call in flight whose requests another thread submits, once its inputs are ready."""

    __slots__ = ("_pending",)

    def __init__(self, pending: Future[Pending]) -> None:
        self._pending = pending

    def done(self) -> bool:
        """Say whether the result is there."""
        return self._pending.done() and (self._pending.exception() is not None or self._pending.result().done())

    def result(self) -> Any:
        """Wait until the requests are submitted and done, and return the result."""
        return self._pending.result().result()


class HandleTable:
    """The calls in flight of one session, by the numbers that users hold."""

    def __init__(self) -> None:
        self._pending: dict[int, Call] = {}
        self._lock = threading.Lock()

    def add(self, pending: Call) -> int:
        """Keep a call and return its number."""
        number = next(_numbers)
        with self._lock:
            self._pending[number] = pending
        return number

    def poll(self, number: int) -> bool:
        """Say whether `synchronize` would return at once.

        Raises:
            ValueError: no such call, or its result was already taken.
        """
        with self._lock:
            pending = self._pending.get(number)
        if pending is None:
            raise ValueError(f"Handle {number} was not created or has been cleared.")
        return pending.done()

    def synchronize(self, number: int) -> Any:
        """Wait for a call and return its result; None for an unknown number, as in Horovod."""
        with self._lock:
            pending = self._pending.get(number)
        if pending is None:
            return None
        try:
            result = pending.result()
        except Exception:
            self._forget(number)
            raise
        self._forget(number)
        return result

    def wait(self, call: Call) -> Any:
        """Return the result of a call that has no number. Interrupted, the call is kept until it is done."""
        try:
            return call.result()
        except BaseException:
            if not call.done():
                self.add(call)
            raise

    def clear(self) -> None:
        """Forget all calls. Only when none of them runs any more: their tensors may go."""
        with self._lock:
            self._pending.clear()

    def _forget(self, number: int) -> None:
        with self._lock:
            self._pending.pop(number, None)
