"""Carries out a plan: has the agents start the workers, listens, and ends the job when it is over.

Everything here runs in one asyncio loop, the roster too. The console's threads only call back through the loop.

When a worker fails, the others are ended: SIGTERM, `GRACE_SECONDS`, SIGKILL. A worker that fails only because it lost
another is not a reason to end that other one before it could end by itself and say why: it gets `BLAMED_SECONDS`.

An agent that is lost takes its workers with it: the kernel ends them when the agent dies, and the agent ends them when
it hears nothing of the launcher. Its host counts as the first failure, and the job ends on all others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from farandole.agent.protocol import (
    STDERR,
    Closed,
    End,
    Exited,
    FromAgent,
    NotStarted,
    Output,
    Start,
    Started,
)
from farandole.launcher.agents.agent_client import AgentClient, AgentLost
from farandole.launcher.agents.fleet import Fleet
from farandole.launcher.failure.error_file import learn, write_error_files
from farandole.launcher.failure.record import WorkerRecord, first_failure, how_it_ended
from farandole.launcher.failure.report import as_shell, exit_code, render_failure
from farandole.launcher.output.console import Console, open_streams
from farandole.launcher.output.logs import rank_folder
from farandole.launcher.output.status import StatusLine
from farandole.launcher.plan.environment import inherited_elsewhere
from farandole.launcher.plan.model import HostPlan, Plan
from farandole.launcher.supervise.ending import GRACE_SECONDS, Ending, sweep_elsewhere, sweep_here
from farandole.launcher.supervise.output_flow import OutputFlow
from farandole.launcher.wording import count
from farandole.roster.service import RosterService
from farandole.wire.rendezvous import Failure, Progress

BLAMED_SECONDS = 1.0
# How long the last words of a dead worker may be on their way through its roster connection.
LAST_WORDS_SECONDS = 0.2


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    exit_code: int
    report: str = ""
    """For people; "" when all went well or the user ended it."""
    rank: int | None = None
    """The rank that failed first."""
    results: tuple[bytes | None, ...] = ()
    """By rank: what workers of `farandole.run` sent back."""


class Running(Protocol):
    """A job that can be ended early."""

    def stop(self, code: int, why: str) -> None:
        """End the job because the user wants it; a second time: at once. `code` becomes the exit code."""

    def pause(self) -> None:
        """Let the agents know that the launcher is about to be stopped, so that they do not miss it."""


class Observer:
    """Hears what becomes of the workers while they run; this one keeps it to itself. Called in the loop's thread."""

    def worker_failed(self, rank: int, code: int) -> None:
        """A worker ended otherwise than with exit code 0; `code` is as a shell gives it."""

    def ends_others(self, rank: int) -> None:
        """The other workers are ended, because this one has failed."""


class Supervisor:
    """One job from start to end.

    Args:
        plan: what to start.
        fleet: the agents of the plan's hosts, which are ready.
        inherited: the launcher's environment, over which the workers' own is laid.
        service: the roster, already listening.
        console: where output and words to the user go.
        job: the job's id, which every process of it carries in its environment.
        log: takes what only a curious user wants to know.
        observer: hears of failures at once.
        hint: what to do about what the worker that failed first has said; "" if that is not known better than from
            the failure alone.
    """

    def __init__(
        self,
        plan: Plan,
        fleet: Fleet,
        inherited: dict[str, str],
        service: RosterService,
        console: Console,
        job: str,
        log: Callable[[str], None],
        observer: Observer,
        hint: Callable[[HostPlan, str], str] = lambda host, said: "",
    ) -> None:
        self._plan = plan
        self._fleet = fleet
        self._hint = hint
        self._inherited = inherited
        self._service = service
        self._console = console
        self._mark = f"FARANDOLE_JOB={job}"
        self._log = log
        self._observer = observer
        self._records = [WorkerRecord(rank) for rank in range(plan.size)]
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flow = OutputFlow()
        self._ended = asyncio.Condition()
        """Notified when a worker has ended."""
        self._ending = Ending()
        self._status = StatusLine(console, [(host.name, [each.rank for each in host.workers]) for host in plan.hosts])

    # --- called from outside, in the loop's thread --------------------------------------------------------------

    def stop(self, code: int, why: str) -> None:
        """End the job because the user wants it; a second time: at once. `code` becomes the exit code."""
        if self._ending.stop_code is None:
            self._ending.stop_code = code
            self._console.say(f"farandole: {why}: ending {count(self._plan.size, 'worker')}; once more to kill them")
            self._end(GRACE_SECONDS)
        else:
            self._end(0)

    def pause(self) -> None:
        """Let the agents know that the launcher is about to be stopped, so that they do not miss it."""
        for agent in self._fleet.elsewhere:
            agent.pause()

    def failure_reported(self, rank: int, failure: Failure) -> None:
        """Take note of what a worker says about its own failure. Only the first of each counts."""
        if 0 <= rank < len(self._records):
            note_report(self._records[rank], failure)

    def progress_reported(self, rank: int, progress: Progress) -> None:
        """Take note of how a worker gets on."""
        self._status.progress(rank, progress.steps, progress.waited, time.monotonic())

    async def run(self) -> Outcome:
        """Start everything, and return when nothing of the job is left."""
        streams = open_streams(
            self._console,
            self._plan.size,
            None if self._plan.output_dir is None else Path(self._plan.output_dir),
            self._flow.written,
            prefixes_in_files=self._plan.prefixes_in_files,
            timestamps=self._plan.timestamps,
        )
        agent_of = {each.rank: self._fleet.agents[host.name] for host in self._plan.hosts for each in host.workers}
        self._flow.add(agent_of, streams)
        for agent in self._fleet.elsewhere:
            self._spawn(agent.watch(self._fleet.timeout))
        for host in self._plan.hosts:
            for order in self._orders(host):
                self._fleet.agents[host.name].tell(order)
        if self._ending.since is not None:
            self._fleet.tell(End(max(0.0, self._ending.kill_at - time.monotonic())))
        try:
            survivors = await asyncio.gather(*map(self._listen, self._plan.hosts))
        finally:
            self._status.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        places = zip(self._plan.hosts, survivors, strict=True)
        return self._outcome([f"process {pid} on {host.name}" for host, pids in places for pid in pids])

    # --- starting -----------------------------------------------------------------------------------------------

    def _orders(self, host: HostPlan) -> list[Start]:
        inherited = self._inherited if host.local else inherited_elsewhere(self._inherited)
        asked = {"FARANDOLE_PROGRESS": "1"} if self._console.has_status else {}
        return [
            Start(
                worker.rank,
                host.command,
                {**inherited, **asked, **self._plan.environment, **host.environment, **worker.environment},
                host.directory,
                inherit=not host.local,
            )
            for worker in host.workers
        ]

    # --- listening ------------------------------------------------------------------------------------------------

    async def _listen(self, host: HostPlan) -> tuple[int, ...]:
        """Take a host's messages until all of it has ended; return the processes that could not be ended."""
        agent = self._fleet.agents[host.name]
        try:
            return await agent.listen(self._take)
        except AgentLost as error:
            return await (self._sweep(str(error)) if host.local else self._lose(host, agent, error))

    def _take(self, message: FromAgent) -> None:
        if isinstance(message, Output | Closed):
            if isinstance(message, Output) and message.stream == STDERR:
                self._records[message.rank].heard(message.data)
            self._flow.take(message)
        elif isinstance(message, Started):
            self._status.worker_started(message.rank)
            self._log(f"rank {message.rank} runs as process {message.pid}")
        elif isinstance(message, NotStarted | Exited):
            record = self._records[message.rank]
            note_end(record, message)
            self._status.worker_ended(message.rank)
            if record.failed:
                self._observer.worker_failed(record.rank, as_shell(record))
            self._spawn(self._worker_ended(record))

    async def _worker_ended(self, record: WorkerRecord) -> None:
        await self._service.silence(record.rank, LAST_WORDS_SECONDS)
        self._service.finished(record.rank, how_it_ended(record))
        async with self._ended:
            self._ended.notify_all()
        if record.failed and self._ending.since is None:
            await self._blamed_ends(record)
            self._observer.ends_others(record.rank)
            self._end(GRACE_SECONDS)
        elif all(each.ended for each in self._records):
            self._end(GRACE_SECONDS)  # What workers left running must go too.

    async def _blamed_ends(self, record: WorkerRecord) -> None:
        """Wait a little for the end of the worker that this one says it lost."""
        blamed = record.consequence_of
        if blamed is None or not 0 <= blamed < len(self._records):
            return
        try:
            async with self._ended:
                await asyncio.wait_for(self._ended.wait_for(lambda: self._records[blamed].ended), BLAMED_SECONDS)
        except (TimeoutError, asyncio.TimeoutError):
            return

    # --- ending -----------------------------------------------------------------------------------------------------

    def _end(self, grace: float) -> None:
        if self._ending.begin(grace):
            self._spawn(self._ending.watch(self._fleet.agents.values, self._flow))
        self._fleet.tell(End(grace))

    async def _sweep(self, how: str) -> tuple[int, ...]:
        """The agent of this machine is dead: kill what it can no longer kill."""
        if self._ending.since is None:
            self._console.say(f"error: {how}; killing the workers")
            self._end(0)
        self._ending.stop_code = self._ending.stop_code or 1
        return await sweep_here(self._mark)

    async def _lose(self, host: HostPlan, agent: AgentClient, lost: AgentLost) -> tuple[int, ...]:
        """Another host is lost: its workers count as ended, and the job is over everywhere."""
        for worker in host.workers:
            record = self._records[worker.rank]
            if not record.ended:
                record.host_lost, record.exit_time = str(lost), lost.at
                self._status.worker_ended(record.rank)
                self._service.finished(worker.rank, how_it_ended(record))
        async with self._ended:
            self._ended.notify_all()
        if self._ending.since is None:
            self._console.say(f"warning: host {host.name} is lost: {lost}; ending the workers on the other hosts")
            self._end(GRACE_SECONDS)
        if not lost.silent:  # Where nothing is heard, nothing can be said; the agent there ends its workers by itself.
            if not await sweep_elsewhere(agent.host, self._fleet.ssh, self._mark):
                self._log(f"host {host.name} cannot be reached to see whether anything is left there")
        return ()

    def _outcome(self, survivors: list[str]) -> Outcome:
        for survivor in survivors:
            self._console.say(f"warning: {survivor} survived SIGKILL; see there: ps -o pid,stat,cmd PID")
        if self._ending.stop_code is not None:
            return Outcome(self._ending.stop_code)
        assert self._ending.since is not None
        results = tuple(self._service.results.get(record.rank) for record in self._records)
        first = first_failure(self._records, self._ending.since)
        if first is None:
            return Outcome(0, results=results)
        if self._plan.output_dir is not None:
            directory, size = Path(self._plan.output_dir), self._plan.size
            folders = {rank: rank_folder(directory, rank, size) for rank in range(size)}
            trouble = write_error_files(folders, self._records, self._ending.since)
            if trouble:
                self._console.say(f"warning: {trouble}")
        host = self._plan.host_of(first.rank)
        said = f"{first.exception}\n{first.stderr_tail.decode('utf-8', 'replace')}"
        report = render_failure(self._plan, self._records, first, self._ending.since, self._hint(host, said))
        return Outcome(exit_code(first, self._ending.since), report, first.rank, results)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def note_report(record: WorkerRecord, failure: Failure) -> None:
    """Take note of what a worker says about its own failure. Only the first counts."""
    if record.report_time is None:
        record.report_time = time.monotonic()
        record.exception = failure.exception
        record.traceback = failure.traceback
        record.consequence_of = failure.consequence_of if failure.consequence_of != record.rank else None


def note_end(record: WorkerRecord, message: NotStarted | Exited) -> None:
    """Take note of how a worker's process ended."""
    record.exit_time = time.monotonic()
    if isinstance(message, Exited):
        record.exit_code = message.code
        record.out_of_memory = message.out_of_memory
        learn(record, message.error_file)
    else:
        record.not_started = message.reason
