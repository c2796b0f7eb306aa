"""The launcher of a job, which runs in a thread of the driver, and the Spark tasks that dial it.

On Spark Connect, the launcher runs in a task (`farandole.spark.connect_task`).
"""

from __future__ import annotations

import math
import operator
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass, replace
from typing import Any, Protocol

from farandole.base.wire.address import format_address
from farandole.control.launcher.agents.reception import Reception
from farandole.control.launcher.arguments import check_stream, check_text, read_number, read_variables
from farandole.control.launcher.function import BackgroundJob, call_command, in_program
from farandole.control.launcher.job.dialed_hosts import DialedHosts
from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.output.console import Console, text_writer
from farandole.control.launcher.start.launch import launch
from farandole.control.launcher.supervise.outcome import JobOutcome
from farandole.errors import JobFailed, SpecError
from farandole.spark.task import Slot

_SECRET_BYTES = 32
_START_SECONDS = 600.0
_REST_SECONDS = 0.2
_END_SECONDS = 30.0
# The launcher knows of a lost task which ranks it had, and Spark why it was lost. Each learns of it in its own time,
# and waits for the other for this long.
_REASON_SECONDS = 5.0
_HOSTS = DialedHosts(
    lost="the output of the executor that ran {host} may show why: in Spark's web interface, under Executors, stderr",
    install="install it in the Python of the executors",
)


class Tasks(Protocol):
    """The tasks of Spark that serve a job."""

    def begin(self, slot: Slot) -> None:
        """Make Spark start the tasks."""

    def failure(self) -> str:
        """Return why Spark cannot run tasks; "": it can."""

    def end(self, patience: float) -> None:
        """End the tasks, and wait until Spark has ended them.

        Args:
            patience: seconds that the tasks have to end by themselves, as they do when their workers have ended.
        """


@dataclass(frozen=True)
class Options:
    """The user's options for a job on Spark, fixed or elastic."""

    start_timeout: float
    env: Mapping[str, str | None]
    stdout: Any
    stderr: Any
    verbose: int
    timestamps: bool
    command: tuple[str, ...]
    """The Python interpreter of the workers."""
    ports: tuple[int, ...]

    @classmethod
    def read(
        cls,
        start_timeout: float | None,
        env: Mapping[str, str | None] | None,
        stdout: Any,
        stderr: Any,
        verbose: int,
        timestamps: bool,
        executable: str | None,
        ports: Iterable[int],
    ) -> Options:
        """Return the options of `run` and `run_elastic`, with their defaults.

        Raises:
            SpecError: an option, or an environment variable for a default, is not valid.
        """
        seconds = start_seconds(start_timeout)
        check_text("executable", executable, "/usr/bin/python3")
        for name, stream in (("stdout", stdout), ("stderr", stderr)):
            check_stream(name, stream)
        if not isinstance(verbose, int):
            raise SpecError(f"verbose={verbose!r:.80} is not a level", "give 0, 1 or 2")
        command = call_command(executable)
        return cls(seconds, read_environment(env), stdout, stderr, verbose, timestamps, command, _read_ports(ports))


def read_environment(given: Any) -> dict[str, str | None]:
    """Return variables for workers; None as a value removes one.

    Raises:
        SpecError: no process can have such variables.
    """
    if not isinstance(given, Mapping):
        return {**read_variables("env", given)}
    kept = {name: value for name, value in given.items() if value is not None}
    return {**dict.fromkeys(given), **read_variables("env", kept)}


def _read_ports(given: Any) -> tuple[int, ...]:
    try:
        ports = tuple(operator.index(port) for port in given)
    except TypeError:
        ports = ()
    if not ports or not all(0 <= port <= 65535 for port in ports):
        raise SpecError(
            f"ports={given!r} is not a sequence of ports",
            "give integers from 0 to 65535, for example ports=(5000,) or ports=range(5000, 5010)",
        )
    return ports


def start_seconds(given: float | None) -> float:
    """Return the number of seconds that tasks have to start.

    Raises:
        SpecError: the number or the variable is not one.
    """
    if given is not None:
        return read_number("start_timeout", given, "seconds")
    text = os.environ.get("HOROVOD_SPARK_START_TIMEOUT", "")
    try:
        return float(text) if text else _START_SECONDS
    except ValueError:
        raise SpecError(f"HOROVOD_SPARK_START_TIMEOUT={text} is not a number of seconds", "set it to one") from None


def run_job(
    host: str,
    tasks: Tasks,
    call: bytes,
    size: int,
    elastic: Elastic | None,
    options: Options,
) -> JobOutcome:
    """Run a job to its end, and clean up.

    Args:
        host: the address at which executors reach this process.
        tasks: the slots for its workers.
        call: the pickled function and arguments.
        size: the number of workers at the beginning.
        elastic: the limits of an elastic job.
        options: all other options of the user.

    Raises:
        HostsMissing: too few tasks have dialed in time.
        JobFailed: Spark cannot run tasks for the job.
        SpecError: the job cannot be started.
    """
    secret = secrets.token_bytes(_SECRET_BYTES)
    reception = Reception(options.ports, lambda: secret, start_timeout=options.start_timeout)
    address = format_address(host, reception.listen())
    spec = LaunchSpec(options.command, size, elastic=elastic, timestamps=options.timestamps, dialed=_HOSTS)
    out, err = streams_of(options)
    console = Console(text_writer(out), text_writer(err))
    # Workers inherit from the tasks that they run in, and nothing from this process, which may be on another machine.
    machine = Machine("driver", 1, 0, "/", {})
    job = BackgroundJob()
    starting = launch(
        in_program(spec),
        machine,
        console,
        started=job.started,
        call=call,
        verbose=options.verbose > 1,
        reception=reception,
    )
    job.begin(starting)
    patience = 0.0
    try:
        tasks.begin(Slot(address, secret, options.start_timeout, options.env))
        outcome = _outcome(job, tasks, reception)
        patience = _END_SECONDS if outcome.exit_code == 0 else _REASON_SECONDS
    finally:
        tasks.end(patience)
    if outcome.exit_code != 0 and (failure := tasks.failure()):
        return replace(outcome, report="\n".join(filter(None, [outcome.report, failure])))
    return outcome


def _outcome(job: BackgroundJob, tasks: Tasks, reception: Reception) -> JobOutcome:
    """Wait for the end of the job; end it if its tasks end, or the user interrupts."""
    failure, deadline = "", math.inf
    try:
        while not wait([job.outcome], _REST_SECONDS).done:
            if not failure and (failure := tasks.failure()):
                reception.give_up(failure)
                deadline = time.monotonic() + _REASON_SECONDS
            if time.monotonic() > deadline:
                deadline = math.inf
                job.stop(failure)
        error = job.outcome.exception()
        if failure and error is not None:
            raise JobFailed(failure, None, 1) from error
        return job.outcome.result()
    except BaseException:
        reception.give_up("the job was interrupted")
        job.stop()
        wait([job.outcome])
        raise


def host_of(context: Any) -> str:
    """Return the address at which executors can reach this process.

    Raises:
        SpecError: Spark does not know an address.
    """
    host = context.getConf().get("spark.driver.host")
    if not host:
        raise SpecError("Spark's driver has no address", "set spark.driver.host to one that executors can reach")
    return str(host)


def streams_of(options: Options) -> tuple[Any, Any]:
    """Return the streams for the workers' standard output and error."""
    given = (options.stdout, sys.stdout), (options.stderr, sys.stderr)
    out, err = (default if stream is None else stream for stream, default in given)
    return out, err


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread of the driver that runs Spark jobs, with the local properties of the present thread, such as its
    pool.
    """
    from pyspark import InheritableThread

    thread: threading.Thread = InheritableThread(target=target, name=name, daemon=True)
    thread.start()
    return thread
