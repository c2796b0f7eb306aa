"""`farandole.run`: a Python function on several workers, from a script or a notebook."""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from farandole.launcher.errors import JobFailed
from farandole.launcher.machine import look
from farandole.launcher.output import Console, text_sink
from farandole.launcher.spec import JobSpec, read_start_timeout
from farandole.launcher.start import launch
from farandole.launcher.supervise import Outcome, Supervisor

_INTERRUPTED = 130


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = 1,
    *,
    start_timeout: float | None = None,
    output_dir: str | PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    executable: str | None = None,
    fusion_threshold_mb: int | None = None,
    transport: str | None = None,
    verbose: bool = False,
) -> list[Any]:
    """Call a function on several new workers of this machine and return their results in rank order.

    The function, its arguments and results are pickled by cloudpickle, so functions of a notebook or of the main
    script work. What workers print is printed here, line by line, with the rank before it.

    Args:
        func: called in every worker as `func(*args, **kwargs)`.
        args: positional arguments.
        kwargs: keyword arguments.
        num_proc: number of workers; None: one for each GPU or, without any, for each core.
        start_timeout: seconds that workers wait for each other in `init()`.
        output_dir: also keep what workers print in `output_dir/rank.N/stdout` and `stderr`.
        env: variables of the workers, on top of this process's environment.
        executable: Python interpreter of the workers; this one by default.
        fusion_threshold_mb: tensors are fused up to this size; 0: not.
        transport: `auto`, `shm` or `tcp`; by default what FARANDOLE_TRANSPORT says, or `auto`.
        verbose: tell the plan and every decision of the roster.

    Raises:
        SpecError: it cannot be started.
        JobFailed: a worker failed; the text tells the first failure. When the function raised, `__cause__` is its
            exception, if that could be pickled.

    Example:
        >>> import farandole
        >>> farandole.run(pow, args=(2, 5), num_proc=2)  # doctest: +SKIP
        [32, 32]
    """
    import cloudpickle  # type: ignore[import-untyped]

    machine = look()
    machine = replace(machine, environment={**machine.environment, **(env or {})})
    spec = JobSpec(
        command=(executable or sys.executable, "-m", "farandole.launcher.call"),
        num_proc=num_proc,
        start_timeout=read_start_timeout(start_timeout, machine.environment),
        fusion_threshold_mb=fusion_threshold_mb,
        transport=transport,
        output_dir=None if output_dir is None else Path(output_dir),
    )
    # The path first, in a pickle of its own: unpickling the rest may import modules from it.
    call = pickle.dumps((sys.path, cloudpickle.dumps((func, tuple(args), dict(kwargs or {})))))
    console = Console(text_sink(sys.stdout), text_sink(sys.stderr))
    job = _BackgroundJob()
    return _results(job.run(launch(spec, machine, console, started=job.started, call=call, verbose=verbose)))


def _results(outcome: Outcome) -> list[Any]:
    if outcome.exit_code != 0:
        report = outcome.report or "the job was ended before the function returned"
        raise JobFailed(report, outcome.rank, outcome.exit_code) from _cause(outcome)
    for rank, pickled in enumerate(outcome.results):
        if pickled is None:
            raise JobFailed(f"rank {rank} exited with code 0 before the function returned", rank, 1)
    return [pickle.loads(pickled)[1] for pickled in outcome.results if pickled is not None]


def _cause(outcome: Outcome) -> BaseException | None:
    """Return the exception that the function raised on the rank that failed first, if it can be had."""
    pickled = None if outcome.rank is None or not outcome.results else outcome.results[outcome.rank]
    if pickled is None:
        return None
    try:
        returned, value = pickle.loads(pickled)
    except Exception:  # Many exceptions cannot be made again from their pickle; the report has the text.
        return None
    return value if not returned and isinstance(value, BaseException) else None


class _BackgroundJob:
    """Runs a job's loop in a thread of its own, because the caller may be in a notebook, whose loop already runs."""

    def __init__(self) -> None:
        self._done: Future[Outcome] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._supervisor: Supervisor | None = None
        self._interrupted = False

    def started(self, supervisor: Supervisor) -> None:
        """Remember whom to tell about Ctrl-C. Runs in the job's thread."""
        self._loop = asyncio.get_running_loop()
        self._supervisor = supervisor
        if self._interrupted:
            supervisor.stop(_INTERRUPTED, "interrupted")

    def run(self, job: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Wait for the job; KeyboardInterrupt ends it, in good order the first time, at once the second."""

        def thread() -> None:
            try:
                self._done.set_result(asyncio.run(job))
            except BaseException as error:
                self._done.set_exception(error)

        threading.Thread(target=thread, name="farandole-launcher").start()
        try:
            return self._done.result()
        except KeyboardInterrupt:
            while not self._done.done():
                self._interrupt()
            raise

    def _interrupt(self) -> None:
        self._interrupted = True
        try:
            if self._loop is not None and self._supervisor is not None:
                self._loop.call_soon_threadsafe(self._supervisor.stop, _INTERRUPTED, "interrupted")
        except RuntimeError:
            pass  # The loop is closed: the job has just ended by itself.
        try:
            self._done.exception()
        except KeyboardInterrupt:
            return
