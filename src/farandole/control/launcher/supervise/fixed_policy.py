"""The policy of a job of fixed size: all workers start together, and the first failure ends the job.

A worker that fails only because it lost another, or because that one has left, is not a reason to end the other before
it could end by itself and say why: it gets `BLAMED_SECONDS`.

An agent that is lost takes its workers with it: the kernel ends them when the agent dies, and the agent ends them when
it hears nothing of the launcher. Its host counts as the first failure, and the job ends on all others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from farandole.control.agent.protocol import Start
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.failure.failure_text import as_shell
from farandole.control.launcher.failure.record import WorkerRecord, how_it_ended
from farandole.control.launcher.host_setup.host_setup import JobHost
from farandole.control.launcher.output.console import Console
from farandole.control.launcher.plan.environment import inherited_elsewhere
from farandole.control.launcher.supervise.ending import GRACE_SECONDS
from farandole.control.launcher.supervise.job_policy import JobPolicy
from farandole.control.launcher.supervise.outcome import Observer
from farandole.control.launcher.supervise.supervisor import Supervisor
from farandole.control.launcher.supervise.workers import Worker

BLAMED_SECONDS = 1.0


class FixedPolicy(JobPolicy):
    """Starts a worker in every place of a plan, and ends the job when one has failed or all have ended.

    Args:
        hosts: that are ready, each with its part of the plan.
        inherited: the launcher's environment, over which the workers' own is laid.
        console: where words to the user go.
        observer: hears of failures at once.
    """

    def __init__(
        self, hosts: Sequence[JobHost], inherited: Mapping[str, str], console: Console, observer: Observer
    ) -> None:
        self._hosts = hosts
        self._inherited = inherited
        self._console = console
        self._observer = observer

    @property
    def size(self) -> int:
        """Workers of the job, whether they still live or not."""
        return sum(len(each.host_plan.workers) for each in self._hosts)

    async def begin(self, job: Supervisor) -> None:
        """Start all workers.

        Raises:
            SpecError: what they print cannot be kept.
        """
        self._job = job
        self._take_on_workers()
        job.status.workers_placed(
            [(each.host.label, tuple(worker.rank for worker in each.host_plan.workers)) for each in self._hosts]
        )
        for job_host in self._hosts:
            job.hosts.have(job_host)
            for order in self._orders(job_host):
                job_host.agent.tell(order)
        if job.ending.begun:
            job.end_agents(max(0.0, job.ending.kill_at - time.monotonic()))

    def _take_on_workers(self) -> None:
        workers = self._job.workers
        workers.prepare_folders()
        workers.world, workers.generation = tuple(range(self.size)), 1
        self._job.history.begins(self.size)
        try:
            for job_host in self._hosts:
                for worker in job_host.host_plan.workers:
                    workers.take_on(worker.rank, job_host)
        except BaseException:
            for number in workers.by_number:
                workers.flow.close(number)
            raise

    def _orders(self, job_host: JobHost) -> list[Start]:
        host = job_host.host_plan
        inherited = self._inherited if host.local else inherited_elsewhere(self._inherited)
        wanted = self._console.has_status or "FARANDOLE_METRICS" in job_host.plan.environment
        asked = {"FARANDOLE_PROGRESS": "1"} if wanted else {}
        common = {**inherited, **asked, **job_host.plan.environment, **host.environment}
        return [
            Start(worker.rank, host.command, {**common, **worker.environment}, host.directory, inherit=not host.local)
            for worker in host.workers
        ]

    @property
    def follows_a_loss(self) -> str:
        """The end of the job."""
        return "the job has a fixed size, so it will end"

    # --- what happens ---------------------------------------------------------------------------------------------

    def worker_over(self, worker: Worker) -> None:
        """End the job when this worker has failed, or was the last one."""
        job, record = self._job, worker.record
        worker.over.set()
        job.status.worker_ended(record.rank)
        job.service.finished(record.rank, how_it_ended(record))
        if record.failed:
            self._observer.worker_failed(record.rank, as_shell(record))
        if record.failed and not job.ending.begun:
            job.background.spawn(self._end_others(record))
        elif all(each.record.ended for each in job.workers.by_number.values()):
            job.end(GRACE_SECONDS)  # What workers left running must go too.

    async def _end_others(self, record: WorkerRecord) -> None:
        await self._blamed_ends(record)
        self._observer.ends_others(record.rank)
        self._job.end(GRACE_SECONDS)

    async def _blamed_ends(self, record: WorkerRecord) -> None:
        """Wait a little for the end of the worker that this one says it lost, or that has left it."""
        blamed = None if record.consequence_of is None else self._job.workers.by_number.get(record.consequence_of)
        if blamed is None:
            return
        try:
            await asyncio.wait_for(blamed.over.wait(), BLAMED_SECONDS)
        except (TimeoutError, asyncio.TimeoutError):
            return

    def host_lost(self, job_host: JobHost, lost: AgentLost) -> list[Worker]:
        """End the job: the workers of the host have ended with it, or end by themselves."""
        if job_host.agent.local:
            self._agent_here_lost(lost)
        else:
            self._host_elsewhere_lost(job_host, lost)
        return []

    def _agent_here_lost(self, lost: AgentLost) -> None:
        ending = self._job.ending
        if not ending.begun:
            self._console.say(f"error: {lost}; killing the workers")
            self._job.end(0)
        ending.stop_code = ending.stop_code or 1

    def _host_elsewhere_lost(self, job_host: JobHost, lost: AgentLost) -> None:
        for worker in self._job.workers.of(job_host):
            worker.lost_with_host(lost)
            self._job.status.worker_ended(worker.number)
            self._job.service.finished(worker.number, how_it_ended(worker.record))
            worker.over.set()
        if not self._job.ending.begun:
            label = job_host.host.label
            self._console.say(f"warning: host {label} is lost: {lost}; ending the workers on the other hosts")
            self._job.end(GRACE_SECONDS)
