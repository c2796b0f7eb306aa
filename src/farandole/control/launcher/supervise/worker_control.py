"""Handles the agents' messages about workers.

The end of a worker is reported at once, but the last message of a dead worker is awaited for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from farandole.control.agent.protocol import (
    STDERR,
    Closed,
    Exited,
    FromAgent,
    NotStarted,
    Output,
    Resumed,
    Stalled,
    Started,
)
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.background import Background
from farandole.control.launcher.host_setup.host_setup import JobHost
from farandole.control.launcher.output.status_line import StatusLine
from farandole.control.launcher.slots.job_events import Event
from farandole.control.launcher.supervise.workers import WAS_STOPPED, Worker, Workers
from farandole.control.roster.events import Continued, Suspected
from farandole.control.roster.service import RosterService

# Seconds that the last message of a dead worker may take through its roster connection.
LAST_WORDS_SECONDS = 0.2
# Seconds that a worker may be stopped before it is excluded, including half a second to notice it.
STALLED_SECONDS = 0.75


class WorkerControl:
    """Turns the agents' messages about the workers of one job into events.

    Args:
        workers: the workers.
        service: the workers' side of the roster, which reads their messages.
        happened: called with events that cannot wait until a worker's end is certain.
        status: the line that shows the number of workers.
        over: called with a worker when its end is certain and it sends no more messages.
        background: the background tasks of the job.
        log: called with lines that are printed with --verbose only.
    """

    def __init__(
        self,
        workers: Workers,
        service: RosterService,
        happened: Callable[[Event], None],
        status: StatusLine,
        over: Callable[[Worker], None],
        background: Background,
        log: Callable[[str], None],
    ) -> None:
        self._workers = workers
        self._service = service
        self._happened = happened
        self._status = status
        self._over = over
        self._background = background
        self._log = log

    def handle(self, job_host: JobHost, message: FromAgent) -> None:
        """Handle an agent's message about a worker; others are ignored."""
        if isinstance(message, Output | Closed):
            if isinstance(message, Output) and message.stream == STDERR and message.rank in self._workers.by_number:
                self._workers.by_number[message.rank].record.heard(message.data)
            self._workers.flow.handle(message)
        elif isinstance(message, Started):
            self._status.worker_started(message.rank)
            self._log(f"{self._workers.noun} {message.rank} runs on {job_host.host.label} as process {message.pid}")
        elif isinstance(message, NotStarted | Exited):
            self._process_ended(self._workers.by_number[message.rank], message)
        elif isinstance(message, Resumed):
            self._take_over(job_host, message)
        elif isinstance(message, Stalled):
            self._stalled(self._workers.by_number[message.rank], message.stopped)

    def _take_over(self, job_host: JobHost, now: Resumed) -> None:
        """Update the workers of an agent that has lost another launcher."""
        self._workers.resume_output(job_host, now.streams)
        living = {each.rank for each in now.workers}
        ends = {each.rank: each for each in now.ends}
        for worker in self._workers.of(job_host):
            if worker.number in living:
                self._status.worker_started(worker.number)
            elif worker.number in ends:
                self._process_ended(worker, ends[worker.number])
            else:
                self._process_ended(worker, NotStarted(worker.number, "the launcher was killed before it did that"))

    def have_ended(self, workers: Sequence[Worker], lost: AgentLost) -> None:
        """Record that the workers of a lost host have ended because of its loss."""
        for each in workers:
            each.lost_with_host(lost)
            self._status.worker_ended(each.number)
            each.over.set()

    def are_gone(self, workers: Sequence[Worker], lost: AgentLost) -> None:
        """Record that the workers of a lost host have certainly ended."""
        for each in workers:
            each.lost_with_host(lost)
            self._workers.flow.close(each.number)
            self._over(each)

    def _stalled(self, worker: Worker, stopped: bool) -> None:
        worker.stop_timer()
        worker.is_suspended = stopped
        if worker.record.ended:
            return
        if stopped:
            loop, silent = asyncio.get_running_loop(), Suspected((worker.number,), WAS_STOPPED, stopped=True)
            worker.stalled = loop.call_later(STALLED_SECONDS, self._happened, silent)
        else:
            self._happened(Continued(worker.number))

    def _process_ended(self, worker: Worker, message: NotStarted | Exited) -> None:
        record = worker.record
        worker.process_ended(message)
        worker.stop_timer()
        if isinstance(message, NotStarted):
            self._workers.flow.close(record.rank)  # It never had any output.
        if record.exit_code is not None and record.exit_code < 0:
            self._over(worker)
        else:
            self._background.spawn(self._await_last_messages(worker))

    async def _await_last_messages(self, worker: Worker) -> None:
        await self._service.wait_until_read(worker.number, LAST_WORDS_SECONDS)
        self._over(worker)
