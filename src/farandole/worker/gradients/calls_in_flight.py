"""The calls of a step that have been started, and not waited for yet."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from farandole.errors import FarandoleError, MismatchError
from farandole.worker.core.handle import Call
from farandole.worker.core.session import Session
from farandole.worker.gradients.entry import Bundle


class _CallInFlight(NamedTuple):
    number: int
    store: Callable[[Any], None]
    """Stores the result of the call in the gradients."""
    bundle: Bundle | None
    """The bundle of the call; None for a submit batch, which has its own list of bundles."""


class CallsInFlight:
    """Calls in flight, in the order in which they were started."""

    def __init__(self) -> None:
        self._calls: list[_CallInFlight] = []

    def begin(self, session: Session, call: Call, store: Callable[[Any], None], bundle: Bundle | None = None) -> None:
        """Submit a call, and keep the function for its result."""
        self._calls.append(_CallInFlight(session.handles.begin(call), store, bundle))

    def finish(self, session: Session) -> Exception | None:
        """Wait for all calls and store their results in the gradients; return the first error."""
        error: Exception | None = None
        for call in self._calls:
            failure = _finish_one(session, call)
            error = error or failure
        self._calls = []
        return error

    def wait(self, session: Session) -> None:
        """Wait for all calls, whether they succeed or not."""
        for call in self._calls:
            with suppress(FarandoleError):
                session.handles.synchronize(call.number)

    def forget(self) -> None:
        """Drop the calls; the session keeps the memory that the engine still writes to."""
        self._calls = []


def _finish_one(session: Session, call: _CallInFlight) -> Exception | None:
    try:
        call.store(session.handles.synchronize(call.number))
    except Exception as error:
        if call.bundle is None:
            return error
        call.bundle.broken = True
        return explained(error, call.bundle)
    return None


def explained(error: Exception, bundle: Bundle) -> Exception:
    """Return an error of a bundle, with the facts about it that only this rank knows."""
    absent = bundle.absent_names()
    if not absent or not isinstance(error, MismatchError):
        return error
    result = MismatchError(
        f"{error} This rank has had no gradient of {', '.join(absent)} so far and took it for dense; if it is sparse "
        "elsewhere, pass sparse_as_dense=True to DistributedOptimizer."
    )
    result.__cause__ = error
    return result
