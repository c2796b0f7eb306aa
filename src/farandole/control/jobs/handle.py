"""Jobs from Python: `farandole.submit` and the handle that it returns."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from farandole.control.jobs import function
from farandole.control.jobs.errors import JobError, Refused, Unreachable
from farandole.control.jobs.places import connect
from farandole.control.jobs.service import JobService
from farandole.control.jobs.spec import JobSpec, Workers, from_dict, parse_workers
from farandole.control.jobs.status import JobState, JobStatus

POLL_SECONDS = 0.5
ABSENCE_SECONDS = 120.0
"""Seconds for which a place may be unreachable while `result` waits for one of its jobs."""


class JobFailed(JobError):
    """A job that was waited for did not succeed, or has not returned the value of each worker.

    Attributes:
        status: final status of the job.

    Args:
        status: final status of the job.
        problem: the rest of the sentence that begins with the job's name; "": its state, and the reason.
    """

    def __init__(self, status: JobStatus, problem: str = "") -> None:
        told = problem or f"{status.state.in_words}: {status.reason or 'no reason is known'}"
        super().__init__(f"job {status.name} {told}")
        self.status = status


class JobHandle:
    """A handle to a submitted job. The job continues when the handle is deleted.

    Attributes:
        name: name of the job.
        place: name of the place where it runs, one of `PLACES`.
    """

    def __init__(self, name: str, place: str, service: JobService) -> None:
        self.name = name
        self.place = place
        self._service = service

    def __repr__(self) -> str:
        return f"JobHandle({self.name!r}, on {self.place!r})"

    def status(self) -> JobStatus:
        """Return the job's current status."""
        return self._service.status(self.name)

    def logs(self, follow: bool = False, rank: int | None = None) -> Iterator[str]:
        """Yield the lines that the job's workers printed, each with its end of line.

        Args:
            follow: whether to continue until the job is over.
            rank: the rank whose lines are yielded; None: all ranks.
        """
        return self._service.logs(self.name, follow, rank)

    def scale(self, workers: int) -> None:
        """Request another number of workers."""
        self._service.scale(self.name, workers)

    def cancel(self) -> None:
        """End the job gracefully. A second call kills it."""
        self._service.cancel(self.name)

    def result(self, timeout: float | None = None) -> JobStatus:
        """Wait until the job is over, and return its final status.

        Args:
            timeout: seconds to wait; None: no limit.

        Raises:
            JobFailed: the job did not succeed.
            TimeoutError: the job is not over after `timeout` seconds.
            Unreachable: the place has not answered for two minutes.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        answered = time.monotonic()
        while True:
            try:
                status = self.status()
            except Unreachable as error:
                # A job may take days, and the place may be restarted meanwhile.
                if time.monotonic() - answered > ABSENCE_SECONDS:
                    raise
                now = f"not known: {error.message}"
            else:
                if status.state.is_over:
                    break
                answered = time.monotonic()
                now = f"{status.state.value}. {status.reason}"
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"job {self.name} is not over: it is {now}")
            time.sleep(POLL_SECONDS)
        if status.state is not JobState.SUCCEEDED:
            raise JobFailed(status)
        return status


class FunctionHandle(JobHandle):
    """A job that calls a function on each of its workers."""

    def __init__(self, name: str, place: str, service: JobService, folder: Path, is_elastic: bool) -> None:
        super().__init__(name, place, service)
        self._folder, self._is_elastic = folder, is_elastic
        self._outcomes: list[tuple[bool, Any]] | None = None
        """The outcomes of the workers, once the job is over; the directory is removed then."""

    def result(self, timeout: float | None = None) -> Any:
        """Wait until the job is over, and return the list of the function's results, in the order of the workers.

        This handle keeps them, and their files are removed.

        Args:
            timeout: seconds to wait; None: no limit.

        Raises:
            JobFailed: the job did not succeed, or a worker of a job of fixed size has not returned a value; `__cause__`
                is the exception that the function raised, if known.
            TimeoutError: the job is not over after `timeout` seconds.
            Unreachable: the place has not answered for two minutes.
        """
        try:
            status = super().result(timeout)
        except JobFailed as failed:
            raise failed from function.first_cause(self._taken(at_least=0))
        outcomes = self._taken(at_least=0 if self._is_elastic else status.wanted)
        values = [value for returned, value in outcomes if returned]
        if not self._is_elastic and len(values) < status.wanted:
            raise JobFailed(
                status,
                f"has values of only {len(values)} of {status.wanted} workers: the others ended before the function "
                "returned, or their values cannot be unpickled here",
            ) from function.first_cause(outcomes)
        return values

    def _taken(self, at_least: int) -> list[tuple[bool, Any]]:
        """Return the outcomes. Their files are removed, unless some of them are still missing here."""
        if self._outcomes is not None:
            return self._outcomes
        outcomes = function.results(self._folder)
        if len(outcomes) >= at_least:
            self._outcomes = outcomes
            function.remove(self._folder)
        return outcomes


def submit(
    script: str | Sequence[str] | Callable[..., Any],
    *arguments: object,
    workers: int | str | Workers | Mapping[str, int] = 1,
    on: str | None = None,
    shared: str | os.PathLike[str] | None = None,
    **more: Any,
) -> JobHandle:
    """Submit a job and return its handle.

    Args:
        script: a Python script, a whole command as a list of words, or a function that each worker calls. For a
            function, `result()` of the handle returns the list of return values.
        arguments: arguments of the script or function.
        workers: number of workers, `"2:8"` for 2 to 8, or a mapping with `min`, `max` and `replicas`.
        on: the place: `queue`, `kubernetes`, `slurm`, `lsf`, `ray` or `local`; None: the default (see
            docs/how-to/queue.md).
        shared: a directory that all hosts of the job share, for a function and its results; None: `.farandole-calls`
            in the current directory.
        more: other keys of a job, such as `name`, `priority`, `queue`, `image`, `checkpoint` and `environment`.

    Raises:
        JobError: the job is not valid, or the place refuses it.

    Example:
        >>> job = farandole.submit("train.py", "--epochs", 90, workers="2:8", priority=5)  # doctest: +SKIP
        >>> job.result().exit_code  # doctest: +SKIP
        0
        >>> farandole.submit(train, 90, workers=4).result()  # doctest: +SKIP
        [0.97, 0.97, 0.97, 0.97]
    """
    place, service = connect(on, os.environ)
    if callable(script):
        if more.get("image") or place == "kubernetes":
            raise Refused("a function cannot be sent into a container", "submit a script that is in the image")
        folder = function.write_call(script, arguments, None if shared is None else Path(shared))
        try:
            spec = describe(function.command_of(folder), (), workers, **more)
            name = service.submit(spec)
        except BaseException:
            function.remove(folder)
            raise
        return FunctionHandle(name, place, service, folder, spec.is_elastic)
    return JobHandle(service.submit(describe(script, arguments, workers, **more)), place, service)


def describe(
    script: str | Sequence[str],
    arguments: Sequence[object] = (),
    workers: int | str | Workers | Mapping[str, int] = 1,
    **more: Any,
) -> JobSpec:
    """Return the spec of a job that runs a script; see `submit`.

    Raises:
        BadSpec: the job is not valid.
    """
    if isinstance(script, str):
        python = "python" if more.get("image") else sys.executable
        command = [python, script] if script.endswith(".py") else [script]
    else:
        command = list(script)
    if isinstance(workers, str):
        workers = parse_workers(workers)
    if isinstance(workers, Workers):
        workers = {"min": workers.min, "max": workers.max, "replicas": workers.replicas}
    return from_dict({"command": [*command, *map(str, arguments)], "workers": workers, **more})
