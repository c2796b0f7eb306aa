"""A world of real workers on this machine, in which a test calls functions.

The workers are a job of farandole's launcher, which runs in a thread of the test's process. Each worker has a
connection to the test: a call goes to all workers, and each one sends its outcome back. When the test's process ends in
any way, the launcher's agent ends the workers.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import pickle
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from farandole.control.launcher.arguments import read_variables
from farandole.control.launcher.function import BackgroundJob, call_command, in_program, pickle_call, results_of
from farandole.control.launcher.job.machine import look
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.job.worker_settings import with_environment
from farandole.control.launcher.output.console import Console, text_writer
from farandole.control.launcher.start.launch import launch
from farandole.errors import InvalidRequestError, JobFailed
from farandole.testing.pickled_calls import pickle_test_call
from farandole.testing.served_calls import Answer, serve

Test = TypeVar("Test", bound=Callable[..., Any])

# The least seconds that workers get to start: on a busy machine, Python alone takes several.
_START_SECONDS = 60.0
# Seconds that the other workers get to report why they failed, once one has failed: they may wait for it in vain.
_AFTERMATH_SECONDS = 2.0
# Seconds that idle workers get to end by themselves, before they are killed.
_END_SECONDS = 10.0
# Seconds that workers get to print their stack traces, before a test that takes too long fails.
_LAST_WORDS_SECONDS = 0.5


class WorkerTraceback(Exception):
    """The traceback of an exception that a worker raised: the `__cause__` of the same exception in the test."""


class World:
    """Workers that call functions for a test; see `world`.

    Attributes:
        size: the number of workers.
        timeout: seconds that a call may take.
    """

    def __init__(self, size: int, timeout: float, env: Mapping[str, str] | None) -> None:
        """Define the world; `with` starts it."""
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidRequestError(f"{size!r} is not a valid number of workers: use 1 or more.")
        if not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
            raise InvalidRequestError(f"a timeout of {timeout!r} seconds is not valid: use a number above 0.")
        self.size = size
        self.timeout = timeout
        self._env = read_variables("env", env)
        self._job: BackgroundJob | None = None
        self._connections: dict[int, Connection] = {}
        self._over: socket.socket | None = None

    def __call__(self, test: Test) -> Test:
        """Return a test function that runs in all workers of a new world, with the arguments that it is called with."""

        @functools.wraps(test)
        def in_all_workers(*args: Any, **kwargs: Any) -> None:
            with World(self.size, self.timeout, self._env) as workers:
                workers.run(test, *args, **kwargs)

        return in_all_workers  # type: ignore[return-value]

    def __enter__(self) -> World:
        """Start the workers, and wait until all of them accept calls."""
        if self._job is not None:
            raise InvalidRequestError("this world has been started already: use a new one for each `with`.")
        folder = tempfile.mkdtemp(prefix="farandole-")
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(os.path.join(folder, "test"))
                listener.listen(self.size)
                self._start(listener.getsockname())
                self._meet(listener)
        except BaseException:
            self._end(at_once=True)
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers, and wait until none is left."""
        self._end(at_once=kind is not None)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call a function in all workers at once, and return the results in the order of ranks.

        The function, its arguments and its results are copied with cloudpickle. The processes keep their state between
        calls, in particular an initialized farandole. After an error, the world has ended.

        Args:
            function: the function.
            args: its positional arguments, the same on all ranks.
            kwargs: its keyword arguments.

        Raises:
            Exception: the function's exception, on the lowest rank that did not fail as a consequence of another one;
                its `__cause__` has the worker's traceback.
            JobFailed: a worker's process has ended, or raised an exception that cannot be pickled.
            TimeoutError: the function took longer than the world's timeout in some workers, which print their
                tracebacks and are ended.
            InvalidRequestError: the world has not been started, or has ended.
        """
        if not self._connections:
            raise InvalidRequestError("this world has no workers: use it in a `with` block, and not after an error.")
        call = pickle_test_call(function, args, kwargs)
        try:
            for connection in self._connections.values():
                with contextlib.suppress(OSError):  # A worker that is gone sends no answer either.
                    connection.send((call, self.timeout))
            return self._results(self._answers())
        except BaseException:
            self._end(at_once=True)
            raise

    def _start(self, address: str) -> None:
        machine = look()
        machine = replace(machine, environment={**machine.environment, **self._env})
        settings = with_environment({}, machine.environment)
        spec = LaunchSpec(command=call_command(), num_proc=self.size, settings=settings, end_grace=0.0)
        console = Console(text_writer(sys.stdout), text_writer(sys.stderr))
        self._job = BackgroundJob()
        call = pickle_call(serve, (address,), {})
        # One end is closed when the job has ended, so that a wait for workers can also wait for that.
        self._over, ended = socket.socketpair()
        self._job.outcome.add_done_callback(lambda _: ended.close())
        self._job.begin(launch(in_program(spec), machine, console, started=self._job.started, call=call))

    def _meet(self, listener: socket.socket) -> None:
        """Wait until all workers have connected."""
        assert self._job is not None and self._over is not None
        seconds = max(self.timeout, _START_SECONDS)
        deadline = time.monotonic() + seconds
        while len(self._connections) < self.size:
            ready = wait([listener, self._over], max(0.0, deadline - time.monotonic()))
            if self._over in ready:
                results_of(self._job.outcome.result())
            if listener not in ready:
                raise TimeoutError(
                    f"only {len(self._connections)} of {self.size} workers have started within {seconds:g} s: see "
                    "what they have printed, or give the world a longer timeout"
                )
            connection = Connection(listener.accept()[0].detach())
            self._connections[connection.recv()] = connection

    def _answers(self) -> dict[int, Answer | None]:
        """Return the answers by rank; None for an ended worker. Ranks that do not answer in time are missing."""
        answers: dict[int, Answer | None] = {}
        rank_of = {connection: rank for rank, connection in self._connections.items()}
        deadline = time.monotonic() + self.timeout + _LAST_WORDS_SECONDS
        while rank_of and (ready := wait([*rank_of], max(0.0, deadline - time.monotonic()))):
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = rank_of.pop(connection)
                try:
                    answers[rank] = answer = connection.recv()
                except (EOFError, OSError):
                    answers[rank] = answer = None
                if answer is None or answer.traceback:
                    deadline = min(deadline, time.monotonic() + _AFTERMATH_SECONDS)
        return answers

    def _results(self, answers: Mapping[int, Answer | None]) -> list[Any]:
        """Return the results by rank, or raise the error that caused the other errors."""
        raised = [rank for rank, answer in sorted(answers.items()) if answer is not None and answer.traceback]
        gone = [rank for rank, answer in sorted(answers.items()) if answer is None]
        for rank in raised:
            if not answers[rank].is_consequence:  # type: ignore[union-attr]
                self._raise(rank, answers[rank])
        if gone:
            raise self._end_of(gone[0])
        if raised:
            self._raise(raised[0], answers[raised[0]])
        if late := sorted(self._connections.keys() - answers.keys()):
            raise TimeoutError(
                f"rank {', '.join(map(str, late))} of {self.size} did not return within {self.timeout:g} s and was "
                "ended; it has printed where it was. A collective waits until all ranks call it"
            )
        return [pickle.loads(answers[rank].payload)[1] for rank in range(self.size)]  # type: ignore[union-attr]

    def _raise(self, rank: int, answer: Answer | None) -> NoReturn:
        assert answer is not None
        text = f"on rank {rank} of {self.size}:\n{answer.traceback}"
        try:
            _, error = pickle.loads(answer.payload)
        except Exception:  # Many exceptions cannot be unpickled; the text has everything.
            error = None
        if error is None:
            raise JobFailed(f"the function raised an error {text}", rank, 1)
        raise error from WorkerTraceback(text)

    def _end_of(self, rank: int) -> JobFailed:
        """Return the error for the end of a worker's process."""
        assert self._job is not None and self._over is not None
        wait([self._over], _AFTERMATH_SECONDS)
        outcome = self._job.outcome
        if outcome.done() and outcome.exception() is None and outcome.result().report:
            found = outcome.result()
            return JobFailed(found.report, found.rank, found.exit_code)
        return JobFailed(f"rank {rank} of {self.size} ended its process before the function returned", rank, 1)

    def _end(self, *, at_once: bool) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        job, over = self._job, self._over
        if job is None or over is None:
            return
        if not at_once:
            wait([over], _END_SECONDS)
        # The second time it is asked to, the launcher does not wait for anything.
        for _ in range(2):
            if not job.outcome.done():
                job.stop("a test has ended early")
                wait([over], _END_SECONDS)
        over.close()
        self._over = None


def world(size: int, *, timeout: float = 60.0, env: Mapping[str, str] | None = None) -> World:
    """Return a world of workers for a test: real processes on this machine, which call functions for it.

    Use it in a `with` block, or as the decorator of a test that should run on all ranks.

    Args:
        size: the number of workers.
        timeout: seconds that a call may take. The workers have a minute to start, or this time if it is longer.
        env: variables for the workers, added to this process's environment.

    Raises:
        ValueError: an argument is not valid.

    Example:
        >>> from farandole.testing import world
        >>> def place():
        ...     import farandole.numpy as hvd
        ...     hvd.init()
        ...     return hvd.rank(), hvd.size()
        >>> with world(2) as workers:
        ...     workers.run(place)
        [(0, 2), (1, 2)]
    """
    return World(size, timeout, env)
