"""The launcher of one attempt of a job: `python -m farandole.control.queue.runner DIRECTORY`.

It runs as the job's user, and outlives the queue's daemon. It starts the job's workers, follows the orders that the
daemon writes, and writes the result of the attempt; see `attempt` for the files.

If it is killed, the agents of a job of fixed size end the workers: the attempt is over. The workers of an elastic job
wait: the runner is the child of a watchdog, which starts a successor, and the queue's daemon starts one when both were
killed. The successor finds the progress of the job in the attempt's directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import os
import signal
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import cast

from farandole.base.display.wording import error_lines
from farandole.base.wire.os_text import SHOWN
from farandole.base.wire.utf8_mode import ensure_utf8
from farandole.control.launcher.background import Background
from farandole.control.launcher.configuration import project
from farandole.control.launcher.daemon.display import STREAMS, JobDisplay
from farandole.control.launcher.daemon.jobs import jobs_of_this_user
from farandole.control.launcher.daemon.log_file import LogFile
from farandole.control.launcher.daemon.named_job import NamedJob
from farandole.control.launcher.daemon.watchdog import run_watched
from farandole.control.launcher.job.from_job import elastic_launch, fixed_launch, from_plain, with_environment
from farandole.control.launcher.job.host_list import Host, with_python
from farandole.control.launcher.job.machine import look
from farandole.control.launcher.job.spec import LaunchSpec, check_backend
from farandole.control.launcher.start.launch import launch
from farandole.control.launcher.supervise.control import ControlledJob
from farandole.control.launcher.supervise.ending import READER_SECONDS
from farandole.control.launcher.supervise.failover_files import NothingLeft, NotTakenOver
from farandole.control.launcher.supervise.outcome import JobOutcome, Running
from farandole.control.queue.attempt import Attempt, AttemptRequest, AttemptResult
from farandole.control.queue.model import AttemptReport, HostWorkers
from farandole.control.scheduler.handover import count
from farandole.errors import LaunchError, SpecError

POLL_SECONDS = 0.1
REPORT_SECONDS = 0.5
NAME_SECONDS = 5.0
_AGAIN_SECONDS = 1.0
# After the grace period of a job, its launcher needs a moment to end all remaining processes.
_EXTRA_SECONDS = 10.0
_NO_LIMIT = sys.maxsize
_STOPPED = 128 + signal.SIGTERM
_WHY = {"cancel": "cancelled", "suspend": "suspended", "kill": "to end at once"}


def main() -> int:
    """Run the attempt whose directory is the argument."""
    ensure_utf8()
    attempt = Attempt.at(Path(sys.argv[1]))
    lock = attempt.claim()
    if lock is None or attempt.ended() is not None:
        return 0  # Another runner holds it, or it is over.
    request = attempt.request()
    goes_on = attempt.has_begun()
    if attempt.ordered() if not goes_on else not (request.job.is_elastic and attempt.can_go_on()):
        attempt.write_ended(AttemptResult(None))
        return 0
    if not goes_on:
        attempt.begin()
    runner = Runner(attempt, request)
    if not runner.enter():
        return 0
    if request.job.is_elastic:
        run_watched(
            lambda follows: runner.run(follows or goes_on),
            lambda: None,
            _prepare,
            attempt.can_go_on,
        )
    else:
        runner.run(False)
    fcntl.flock(lock, fcntl.LOCK_UN)  # The watchdog holds the lock too, and may take a moment to end.
    return 0


def _prepare() -> None:
    """Import what a successor needs and a first runner imports only when it launches the job."""
    importlib.import_module("farandole.control.launcher.start.elastic")


class Runner:
    """Runs one attempt to its end, as the holder of the attempt's lock.

    Args:
        attempt: the files of the attempt.
        request: the job to run.
    """

    def __init__(self, attempt: Attempt, request: AttemptRequest) -> None:
        self._attempt = attempt
        self._request = request
        self._log = LogFile(attempt.log, _NO_LIMIT)
        self._named: NamedJob | None = None
        self._job: Running | None = None
        self._elastic: ControlledJob | None = None
        """The same job, if it is elastic."""
        self._follows = False
        """Whether this is the successor of a runner whose workers are still alive."""
        self._told = ""
        """The latest order that was passed on."""
        self._kill_at = float("inf")
        self._report_at = 0.0

    def enter(self) -> bool:
        """Switch to the job's output, environment and working directory; return whether that succeeded.

        If it did not, the attempt has ended.
        """
        for stream in STREAMS:
            os.dup2(self._log.fileno(), stream)  # Tracebacks of this process go to the log too.
        os.environ.clear()
        os.environ.update(self._request.environment)
        try:
            os.chdir(self._request.directory)
        except OSError as error:
            self._end(126, f"error: the job cannot be started in {self._request.directory}: {error}")
            return False
        if self._request.job.is_elastic:
            try:
                self._named = self._claim_name()
            except SpecError as error:
                self._end(2, error_lines(error.message, error.hint))
        return self._attempt.ended() is None

    def _claim_name(self) -> NamedJob:
        """Claim the name under which commands find the job.

        Raises:
            SpecError: another job has the name.
        """
        jobs = jobs_of_this_user(os.environ)
        deadline = time.monotonic() + NAME_SECONDS
        while True:
            try:
                return NamedJob.claim(jobs, self._attempt.local_name)
            except SpecError:
                # A command that cleans up after a killed runner holds it for a moment.
                if time.monotonic() > deadline:
                    raise
            time.sleep(POLL_SECONDS)

    def run(self, follows: bool) -> None:
        """Run the job to its end, or continue it, and record the result.

        Args:
            follows: whether this is the successor of a runner that was killed.
        """
        self._follows = follows
        code, said = asyncio.run(self._run())
        self._end(code, said)

    def _end(self, code: int | None, said: str) -> None:
        if said:
            self._log(f"{said}\n".encode("utf-8", SHOWN))
        self._attempt.end(AttemptResult(code, bool(self._told)))
        self._attempt.failover_files().clear()

    async def _run(self) -> tuple[int | None, str]:
        """Return the exit code of the job (None if it is unknown), and the last line for its log."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._stop, 128 + signum, signum.name)
        try:
            outcome = await self._launch_or_take_over(self._spec())
            return outcome.exit_code, outcome.report
        except NothingLeft as error:
            return None, error_lines(error.message, error.hint)
        except SpecError as error:
            return 2, error_lines(error.message, error.hint)
        except asyncio.CancelledError:
            return _STOPPED, ""
        except Exception:
            return 1, f"error: the launcher failed:\n{traceback.format_exc()}"
        finally:
            if self._named is not None:
                self._named.close()

    def _spec(self) -> LaunchSpec:
        """Return the launch spec of the job.

        Raises:
            SpecError: the job cannot be launched.
        """
        request = self._request
        for_all = from_plain(request.options.launch)
        for_all = replace(for_all, output=replace(for_all.output, status=False, color="never"))
        self._read_project(request.directory)
        spec = with_environment(_launch_of(request, self._attempt, for_all), os.environ)
        check_backend(spec, None)
        return spec

    def _read_project(self, directory: str) -> None:
        """Add the variables of the job's project file."""
        if (path := project.find(Path(directory))) is None:
            return
        found = project.read(path)
        for name, value in found.environment.items():
            os.environ.setdefault(name, value)
        if found.run:
            self._say(f"note: options under [run] in {path} apply to farandole run, not to jobs in a queue")

    def _say(self, text: str) -> None:
        self._log(f"{text}\n".encode("utf-8", SHOWN))

    async def _launch_or_take_over(self, spec: LaunchSpec) -> JobOutcome:
        """Run the job to its end; a failed take-over is retried while the workers may wait for a launcher.

        Raises:
            NothingLeft: no worker of the job is alive.
            SpecError: the job cannot be started; nothing was.
        """
        deadline = time.monotonic() + (spec.elastic.search_timeout if spec.elastic is not None else 0.0)
        while True:
            try:
                return await self._launch(spec)
            except NotTakenOver as error:
                if time.monotonic() > deadline:
                    raise NothingLeft(error.message, error.hint) from error
                self._say(f"warning: {error.message}")
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _launch(self, spec: LaunchSpec) -> JobOutcome:
        display = JobDisplay(self._log, spec.output)

        def started(job: Running) -> None:
            self._job = job
            if self._named is not None:
                self._elastic = cast(ControlledJob, job)
                self._named.serve(self._elastic, spec, display.output_from)

        elastic = spec.elastic is not None
        running = asyncio.ensure_future(
            launch(
                spec,
                look(),
                display.console,
                started=started,
                verbose=self._request.options.verbose,
                failover_files=self._attempt.failover_files() if elastic else None,
                name=self._attempt.local_name if elastic else "",
            )
        )
        background = Background()
        background.spawn(self._follow_orders(running))
        try:
            return await running
        except NothingLeft:
            await asyncio.to_thread(display.console.close, READER_SECONDS)
            raise
        finally:
            await background.end()
            self._job = self._elastic = None

    # --- orders ------------------------------------------------------------------------------------------------------

    async def _follow_orders(self, running: asyncio.Future[JobOutcome]) -> None:
        while True:
            self.follow_order(running)
            self._write_reports()
            await asyncio.sleep(POLL_SECONDS)

    def _stop(self, code: int, why: str) -> None:
        if self._job is not None:
            self._job.stop(code, why)

    def follow_order(self, running: asyncio.Future[JobOutcome]) -> None:
        """Pass on an order of the queue's daemon, if it is new.

        Args:
            running: the launch of the job, which is cancelled if no job has started yet.
        """
        order = self._attempt.ordered()
        now = time.monotonic()
        if not order or (self._job is None and self._follows):
            return  # While the job is being taken over, its workers would continue without a launcher.
        if self._job is None:
            self._told = order
            running.cancel()
        elif not self._told:
            self._told = order
            self._kill_at = now + self._request.job.grace + _EXTRA_SECONDS
            self._begin_to_end(self._job, order)
        elif order == "kill" and self._told != "kill":
            self._told = order
            self._kill_at = min(self._kill_at, now + _EXTRA_SECONDS)
            self._job.stop(_STOPPED, _WHY[order])
        elif now > self._kill_at:
            self._kill_at = now + _EXTRA_SECONDS
            self._job.stop(_STOPPED, _WHY[order])  # A second call ends everything at once.

    def _begin_to_end(self, job: Running, order: str) -> None:
        spec = self._request.job
        if order == "suspend" and spec.signal != "SIGTERM" and not spec.is_elastic:
            job.send_signal(getattr(signal, spec.signal))
            return
        job.stop(_STOPPED, _WHY[order])
        if order == "kill":
            job.stop(_STOPPED, _WHY[order])

    # --- reports -----------------------------------------------------------------------------------------------------

    def _write_reports(self) -> None:
        """Write a report on the elastic job every `REPORT_SECONDS` seconds."""
        job = self._elastic
        if job is None or time.monotonic() < self._report_at:
            return
        self._report_at = time.monotonic() + REPORT_SECONDS
        with contextlib.suppress(LaunchError, OSError):
            report = report_of(job, time.time())
            self._attempt.write_report(report)
            # The launcher that took over from a killed one has not received the batch.
            if (batch := self._attempt.batch()) != report.scheduled_batch:
                job.schedule_batch(batch)


def report_of(job: ControlledJob, at: float) -> AttemptReport:
    """Return a report on an elastic job.

    Args:
        job: a running job.
        at: the current time, in seconds since 1970.
    """
    hosts = {row.name: HostWorkers(row.slots, len(row.workers)) for row in job.list_hosts()}
    status = job.status()
    return AttemptReport(
        at,
        hosts,
        status["size"],
        status["waits_for"],
        status["steps_per_second"],
        status["measures"],
        status["scheduled_batch"],
    )


def _launch_of(request: AttemptRequest, attempt: Attempt, for_all: LaunchSpec) -> LaunchSpec:
    job = request.job
    if job.is_elastic:
        return elastic_launch(job, count(request.slots), f"file:{attempt.hosts}", for_all)
    hosts = tuple(
        Host(name, number, slot_numbers=request.slot_numbers.get(name, "")) for name, number in request.slots.items()
    )
    return fixed_launch(job, with_python(hosts, request.options.python), for_all)


if __name__ == "__main__":
    sys.exit(main())
