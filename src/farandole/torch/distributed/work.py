"""The result of a c10d call, and the thread that completes futures.

A thread that waits for a `Work` waits in the native engine, without Python's lock and without an intermediate thread. A
future is different: its callbacks must run whether or not a thread waits. So the first future of a group starts one
thread, which waits for the works whose futures were requested, in the order in which they were started. They also end
in this order: all members of a group begin the same collectives in the same order. Only transfers between two members
end in any order, so each of their futures, which are rarely requested, has its own thread.

On a GPU, as with torch's NCCL backend, a thread waits until the members have agreed and the collective is launched, and
its current stream waits for the result. `is_completed` asks the GPU.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from farandole.errors import FarandoleError
from farandole.torch.collectives.tensors import current_stream, gpu_stream
from farandole.torch.distributed.calls import Call
from farandole.worker.core.engine import WAIT_SLICE_SECONDS, Engine
from farandole.worker.core.submission import Submission

NO_TIMEOUT = timedelta(0)  # c10d's word for "the timeout of the call".
CLOSE_SECONDS = 5.0


@dataclass
class Terms:
    """The properties of one work.

    Attributes:
        label: the name that messages use for it.
        seconds: the time limit in seconds.
        rank: this process's rank in the group.
        transfer: whether the call is between only two members of the group.
        source_rank: the member that sent a received tensor.
    """

    label: str
    seconds: float
    rank: int
    transfer: bool = False
    source_rank: int = -1


class Work(dist.Work):
    """One c10d call in flight: one or more native requests, which are waited for together.

    Requests that are not done when the time is up end their whole group, on all its members: a part of a collective
    cannot be cancelled, and a tensor must not be written to after its call has failed.
    """

    def __init__(
        self,
        engine: Engine,
        submission: Submission | None,
        call: Call,
        terms: Terms,
        completer: Completer,
        on_over: Callable[[Work], None],
    ) -> None:
        """Own a submitted call.

        Args:
            engine: the engine that runs the request.
            submission: the submission, which is released when the work is over; None if there was nothing to do.
            call: the submitted call. It is kept, with all tensors that the engine uses, until it is done.
            terms: the properties of the work.
            completer: the completer of the future, if one is requested.
            on_over: called once, when the engine no longer uses the tensors.
        """
        super().__init__()
        self._engine = engine
        self._submission = submission
        self._outputs = call.outputs
        self._call: Call | None = call
        self._terms = terms
        self._begun = time.monotonic()
        self._completer = completer
        self._on_over = on_over
        self._lock = threading.Lock()
        self._over = False
        self._error: Exception | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        # For a call on a GPU: the stream in which it was made and, once it is over, an event after its work on the GPU.
        self._device = call.device
        self._begun_in = None if self._device is None else current_stream(self._device)
        self._ready: torch.Event | None = None

    # --- waiting -------------------------------------------------------------------------------------------------

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until the outputs are complete; on a GPU, the current stream waits, and the thread only for the launch.

        Args:
            timeout: the time after which the group is ended; by default that of the call.

        Raises:
            DistBackendError: the call failed: the members' calls did not match, one of them was lost, or it took
                too long. The message gives the reason.
        """
        if not self._over:
            seconds = timeout.total_seconds()
            self.settle(time.monotonic() + seconds if seconds > 0 else None)
        if self._error is not None:
            raise dist.DistBackendError(str(self._error)) from self._error.__cause__
        if self._device is not None and self._ready is not None:
            current_stream(self._device).wait_event(self._ready)
        return True

    def settle(self, deadline: float | None = None) -> None:
        """Wait until the work is over, successfully or with an error. At the deadline, by default its own, end the
        group.
        """
        if self._over:
            return
        cause: Exception | None = None
        deadline = self._begun + self._terms.seconds if deadline is None else deadline
        try:
            self._wait_until(deadline)
        except FarandoleError as error:
            cause = error
        with self._lock:
            if self._over:
                return  # Another thread was quicker; the state of released handles means nothing.
            if cause is None and self._call is not None and self._call.finish is not None:
                try:
                    self._call.finish(self._engine, () if self._submission is None else tuple(self._submission.handles))
                except Exception as error:
                    cause = error
            if cause is None and self._call is not None and self._device is not None:
                self._ready = self._end_on_gpu(self._device, self._call)
            if self._submission is not None:
                self._engine.release(self._submission)
            self._call = None
            self._error = None if cause is None else failure(self._terms.label, cause)
            self._over = True
        self._on_over(self)

    def _wait_until(self, deadline: float) -> None:
        if self._submission is None:
            return
        while not self._wait_for(self._submission, min(WAIT_SLICE_SECONDS, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline and not self._over:
                self._give_up()
                deadline = float("inf")  # It fails now, as soon as the engine has let go of the tensors.

    def _wait_for(self, submission: Submission, seconds: float) -> bool:
        if self._device is None:
            return self._engine.wait_for(submission, seconds)
        return self._engine.wait_on_for(submission, gpu_stream(self._device), seconds)

    def _end_on_gpu(self, device: torch.device, call: Call) -> torch.Event | None:
        """Return an event of the current stream, which waits for the outputs; None if they are complete."""
        if call.finish is None and (self._submission is None or self._is_done(self._submission)):
            return None
        current = current_stream(device)
        if current != self._begun_in:
            # Their memory belongs to the stream in which they were made, which need not wait for this call.
            for tensor in call.kept:
                tensor.record_stream(current)
        event = torch.Event(device)
        event.record(current)
        return event

    def _give_up(self) -> None:
        waited = time.monotonic() - self._begun
        reason = f"rank {self._terms.rank} has waited {waited:.1f} s for {self._terms.label} which is over its timeout"
        with contextlib.suppress(FarandoleError):  # The world may have ended just now.
            self._engine.revoke(-1, reason)

    # --- queries -------------------------------------------------------------------------------------------------

    def is_completed(self) -> bool:
        """Return whether the outputs are complete, or the work has failed."""
        if not self._over and (self._submission is None or self._is_done(self._submission)):
            self.settle()
        return self._over and (self._ready is None or self._ready.query())

    def _is_done(self, submission: Submission) -> bool:
        if self._device is None:
            return self._engine.done(submission)
        try:
            return self._engine.wait_for(submission, 0.0)  # For `done`, a launch is enough.
        except FarandoleError:
            return True

    def is_over(self) -> bool:
        """Return whether the engine no longer uses the tensors. Unlike `is_completed`, this finishes nothing."""
        return self._over

    def is_success(self) -> bool:
        """Return whether the work has succeeded."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """Return the error of the work, if it failed."""
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """Return the outputs; wait for them first."""
        self.wait()
        return self._outputs

    def synchronize(self) -> None:
        """Wait, as `wait` does."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait: the members must have agreed before a stream can wait."""
        self.wait()

    def source_rank(self) -> int:
        """Return the member that sent the received tensor."""
        return self._terms.source_rank

    _source_rank = source_rank

    # --- futures -------------------------------------------------------------------------------------------------

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future whose value is the list of outputs. Its callbacks run when they are complete."""
        with self._lock:
            if self._future is not None:
                return self._future
            # On a GPU, callbacks have streams of their own, and a stream that waits for the future waits for theirs.
            devices: list[int | str | torch.device] = [] if self._device is None else [self._device]
            source: torch.futures.Future[None] = torch.futures.Future(devices=devices)
            # An error set on a Python future is a mere value for code that waits in C++, as DDP does. An error
            # raised by a callback is an error for all.
            self._future = source.then(lambda _: self.result())
        if self.is_completed() or self._over:
            source.set_result(None)
        elif self._terms.transfer:
            threading.Thread(target=source.set_result, args=(None,), name="farandole-transfer", daemon=True).start()
        else:
            self._completer.add(source)
        return self._future


class Works(dist.Work):
    """Several works in the form of one, as c10d's coalescing manager requires."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__()
        self._works = list(works)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for all works, and raise the first error."""
        for work in self._works:
            work.settle()
        return all(work.wait(timeout) for work in self._works)

    def is_completed(self) -> bool:
        """Return whether `wait` would return at once."""
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> torch.futures.Future[list[torch.futures.Future[list[torch.Tensor]]]]:
        """Return a future of the list of their futures."""
        return torch.futures.collect_all([work.get_future() for work in self._works])


class Completer:
    """The thread that completes the futures of one group. The first future starts it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[torch.futures.Future[None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def add(self, source: torch.futures.Future[None]) -> None:
        """Complete a future, whose callback waits for a work. Add futures in the order in which the works began."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        if threading.current_thread() is self._thread:
            # A callback begins another call and asks for its future. It may wait for it, and no other
            # thread would complete it meanwhile.
            source.set_result(None)
        else:
            self._queue.put(source)

    def close(self) -> None:
        """End the thread after its present futures. All works end soon, because this process has left the group."""
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._queue.put(None)
            thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while (source := self._queue.get()) is not None:
            source.set_result(None)


def failure(label: str, cause: Exception) -> Exception:
    """Return the exception that torch's users catch; in its cause, `lost_rank_behind` finds the lost rank."""
    error: Exception = dist.DistBackendError(f"{label} failed: {cause}")
    error.__cause__ = cause
    return error


def total_seconds(timeout: Any, default: float) -> float:
    """Return the seconds of a call's timeout; a negative one in c10d's options means that there is none."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else -1.0
    return seconds if seconds > 0 else default
