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

from farandole.control.launcher.arguments import (
    check_call,
    check_path,
    check_text,
    read_count,
    read_number,
    read_variables,
)
from farandole.control.launcher.job.host_list import parse_hosts, with_slots
from farandole.control.launcher.job.machine import Machine, look
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.job.worker_settings import with_start_timeout
from farandole.control.launcher.output.console import Console, text_writer
from farandole.control.launcher.start.external import ExternalJob, launch_external
from farandole.control.launcher.start.launch import launch
from farandole.control.launcher.supervise.outcome import JobOutcome, Observer, Running
from farandole.control.launcher.targets.launch_order import Starter
from farandole.errors import JobFailed, SpecError

_INTERRUPTED = 130
_HOST_TIMEOUT_SECONDS = 30.0


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
    hosts: str | None = None,
    network: str | None = None,
    verbose: bool = False,
) -> list[Any]:
    """Run a function on several new workers, on this machine or on several, and return the results in rank order.

    The function, its arguments and its results are pickled with cloudpickle, so functions from a notebook or the main
    script work. Output of the workers is printed here, line by line, prefixed with the rank.

    Args:
        func: the function, called in every worker as `func(*args, **kwargs)`.
        args: positional arguments.
        kwargs: keyword arguments.
        num_proc: number of workers; None: all slots of the hosts, or without hosts one for each GPU or core.
        start_timeout: seconds that workers wait in `init()` after the latest arrival for the others to arrive.
        output_dir: directory in which the output of workers is also saved, as `output_dir/rank.N/stdout` and `stderr`.
        env: variables for the workers, added to this process's environment; numbers are converted to text.
        executable: Python interpreter of the workers (default: this process's).
        fusion_threshold_mb: the size in MiB up to which tensors are fused; 0: no fusion.
        hosts: the hosts, as after -H of farandole run: `h1:4,h2:4` (default: this machine). The other hosts need the
            packages that the function imports.
        network: the network between workers of different hosts, as after --network.
        transport: `auto`, `shm` or `tcp` (default: the value of FARANDOLE_TRANSPORT, or `auto`).
        verbose: whether to print the plan and every decision of the roster.

    Raises:
        SpecError: the job cannot be started.
        JobFailed: a worker failed; the text describes the first failure. If the function raised an exception that could
            be pickled, it is the `__cause__`.

    Example:
        >>> import farandole
        >>> farandole.run(pow, args=(2, 5), num_proc=2)
        [32, 32]
    """
    # Before anything is looked at: what no worker could be started with.
    check_call(func, args, {} if kwargs is None else kwargs)
    check_text("executable", executable, sys.executable)
    check_path("output_dir", output_dir)
    check_text("hosts", hosts, "h1:4,h2:4")
    check_text("network", network, "eth0,eth1")
    variables = read_variables("env", env)
    machine = look()
    machine = replace(machine, environment={**machine.environment, **variables})
    spec = LaunchSpec(
        command=call_command(executable),
        num_proc=num_proc,
        hosts=() if hosts is None else with_slots(parse_hosts(hosts), None),
        network=() if network is None else tuple(network.split(",")),
        settings=with_start_timeout(_asked(fusion_threshold_mb, transport, start_timeout), machine.environment),
        output_dir=None if output_dir is None else Path(output_dir),
    )
    call = pickle_call(func, args, {} if kwargs is None else kwargs)
    return results_of(run_in_background(spec, machine, call=call, verbose=verbose))


def _asked(fusion_threshold_mb: int | None, transport: str | None, start_timeout: float | None) -> dict[str, Any]:
    """Return the given values of the workers' settings, in the settings' units."""
    threshold = None
    if fusion_threshold_mb is not None:
        threshold = read_count("fusion_threshold_mb", fusion_threshold_mb, "MiB", least=0) * 1024 * 1024
    if start_timeout is not None:
        start_timeout = read_number("start_timeout", start_timeout, "seconds")
    asked = {"fusion_threshold": threshold, "transport": transport, "start_timeout": start_timeout}
    return {name: value for name, value in asked.items() if value is not None}


def call_command(executable: str | None = None) -> tuple[str, ...]:
    """Return the command of workers that run a function rather than a program."""
    return (executable or sys.executable, "-m", "farandole.control.launcher.call")


def pickle_call(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Return the pickled call that these workers fetch and make.

    Raises:
        SpecError: it is not a call, or cannot be pickled.
    """
    from farandole.base import portable

    check_call(func, args, kwargs)

    try:
        pickled = portable.dumps((func, tuple(args), dict(kwargs)))
    except Exception as error:  # Objects raise whatever they like.
        raise SpecError(
            f"the function or an argument cannot be sent to workers: {error}",
            "create such an object within the function, or give what it is made of",
        ) from error
    # The path first, in a separate pickle: unpickling the rest may import modules from it.
    return pickle.dumps((sys.path, pickled))


def run_in_background(
    spec: LaunchSpec,
    machine: Machine,
    *,
    call: bytes | None = None,
    verbose: bool = False,
    observe: Callable[[Console], Observer] | None = None,
    through: Starter | None = None,
) -> JobOutcome:
    """Run a job inside a program that does other things as well, and return how the job ended.

    Output of the workers goes to the current `sys.stdout` and `sys.stderr`. KeyboardInterrupt ends the job.

    Args:
        spec: the job that the user wants.
        machine: this machine, from which the job is started.
        call: the pickled call that the workers fetch, if they run a function.
        verbose: whether to print the plan and every decision of the roster.
        observe: returns the observer that is notified of failures at once and may print to the console.
        through: the program that starts the workers; None starts them directly.

    Raises:
        SpecError: the job cannot be started; nothing has been started.
    """
    console = Console(text_writer(sys.stdout), text_writer(sys.stderr))
    if through is not None:
        external = BackgroundJob()
        return external.run(
            launch_external(through, spec, machine, console, started=external.started, call=call, verbose=verbose)
        )
    observer = None if observe is None else observe(console)
    job = BackgroundJob()
    return job.run(
        launch(in_program(spec), machine, console, started=job.started, call=call, verbose=verbose, observer=observer)
    )


def results_of(outcome: JobOutcome) -> list[Any]:
    """Return the function's results in rank order.

    Raises:
        JobFailed: a worker failed, or its result cannot be unpickled.
    """
    if outcome.exit_code != 0:
        report = outcome.report or "the job was ended before the function returned"
        raise JobFailed(report, outcome.rank, outcome.exit_code) from cause_of(outcome)
    return [_result_of(rank, pickled) for rank, pickled in enumerate(outcome.results)]


def _result_of(rank: int, pickled: bytes | None) -> Any:
    if pickled is None:
        raise JobFailed(f"rank {rank} exited with code 0 before the function returned", rank, 1)
    try:
        return pickle.loads(pickled)[1]
    except Exception as error:  # Its class raises what it likes, or is not installed here.
        raise JobFailed(
            f"the function has returned on rank {rank}, but its result cannot be unpickled in this process: "
            f"{type(error).__name__}: {error}. Return what it is made of, such as numbers and arrays, or save it to a "
            "file.",
            rank,
            1,
        ) from error


def cause_of(outcome: JobOutcome) -> BaseException | None:
    """Return the exception that the function raised on the worker that failed first, if it is available."""
    if outcome.raised is None:
        return None
    try:
        returned, value = pickle.loads(outcome.raised)
    except Exception:  # Many exceptions cannot be unpickled; the report has the text.
        return None
    return value if not returned and isinstance(value, BaseException) else None


def in_program(spec: LaunchSpec) -> LaunchSpec:
    """Return the spec for a launcher that is a thread of the user's program, with a host timeout of at least 30 s.

    The program may keep the launcher from running for seconds: by a call that holds the interpreter's lock, or because
    it was stopped. Hosts must not give up the job meanwhile.
    """
    return replace(spec, host_timeout=max(spec.host_timeout, _HOST_TIMEOUT_SECONDS))


class BackgroundJob:
    """Runs a job's loop in a separate thread, because the caller may be a notebook, whose own loop is running."""

    def __init__(self) -> None:
        """Create a runner without a job."""
        self.outcome: Future[JobOutcome] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._supervisor: Running | ExternalJob | None = None
        self._why_stopped = ""

    def started(self, supervisor: Running | ExternalJob) -> None:
        """Store the job that `stop` ends. Called in the job's thread."""
        self._loop = asyncio.get_running_loop()
        self._supervisor = supervisor
        if self._why_stopped:
            supervisor.stop(_INTERRUPTED, self._why_stopped)

    def begin(self, job: Coroutine[Any, Any, JobOutcome]) -> None:
        """Run the job, which passes its supervisor to `started`, and store its result or its error in `outcome`."""

        def thread() -> None:
            try:
                self.outcome.set_result(asyncio.run(job))
            except BaseException as error:
                self.outcome.set_exception(error)

        threading.Thread(target=thread, name="farandole-launcher").start()

    def run(self, job: Coroutine[Any, Any, JobOutcome]) -> JobOutcome:
        """Wait for the job; a first KeyboardInterrupt ends it gracefully, a second one at once."""
        self.begin(job)
        try:
            return self.outcome.result()
        except KeyboardInterrupt:
            while not self.outcome.done():
                self.stop()
                try:
                    self.outcome.exception()
                except KeyboardInterrupt:
                    continue
            raise

    def stop(self, why: str = "interrupted") -> None:
        """End the job; a second call ends it at once. Does not wait for the end."""
        self._why_stopped = why
        try:
            if self._loop is not None and self._supervisor is not None:
                self._loop.call_soon_threadsafe(self._supervisor.stop, _INTERRUPTED, why)
        except RuntimeError:
            pass  # The loop is closed: the job has just ended by itself.
