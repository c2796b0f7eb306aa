"""Takes a job over from a launcher that was killed: its hosts with their agents, its workers, its roster.

Everything is as the other one has written it down, and as the agents say it is now; what lies between is told to the
roster and to the policy of the slots as if it had just happened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from farandole.control.agent.protocol import Resumed
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.host_setup.host_setup import HostSetup, JobHost
from farandole.control.launcher.output.console import Console
from farandole.control.launcher.slots import slot_events as events
from farandole.control.launcher.slots.slot_state import living, site_of
from farandole.control.launcher.supervise.ending import GRACE_SECONDS
from farandole.control.launcher.supervise.failover_files import NothingLeft
from farandole.control.launcher.supervise.failover_state import FailoverState, SavedEnd, SavedHost, SavedWorker
from farandole.control.launcher.supervise.job_hosts import JobHosts
from farandole.control.launcher.supervise.messages import take_over_message
from farandole.control.launcher.supervise.roster_port import PortLost, listen_again
from farandole.control.launcher.supervise.workers import Worker, Workers

if TYPE_CHECKING:
    from farandole.control.launcher.supervise.elastic_policy import ElasticPolicy

# By then a host has let us in and led us to its agent, or it is lost like one that falls silent.
TAKE_OVER_SECONDS = 15.0
# Between two attempts to start what leads to an agent.
_REST_SECONDS = 0.5


class TakeOver:
    """Goes on where the launcher before was killed, if there was one.

    Attributes:
        left: what it has left; None: there was none.
        done: the hosts that it had are this launcher's now.
        inherited_end: set if it was ending the job, or this launcher was told to before it knew all agents.

    Args:
        policy: of the job.
        setup: leads to the agents.
        listen: lets workers reach the roster.
        console: where words to the user go.
        left: see above.
    """

    def __init__(
        self,
        policy: ElasticPolicy,
        setup: HostSetup,
        listen: Callable[[], Awaitable[object]],
        console: Console,
        left: FailoverState | None,
    ) -> None:
        self.left = left
        self.done = False
        self.inherited_end: SavedEnd | None = None
        self._policy = policy
        self._setup = setup
        self._listen = listen
        self._console = console
        self._going_on = False
        """Whether not all agents are known yet."""
        self._hasty = False
        """Whether this launcher was told to end the job a second time."""

    def postpones_end(self, code: int) -> bool:
        """Keep for later that the user wants the job to end, if not all agents are known yet."""
        if self._going_on:
            self._hasty = self.inherited_end is not None
            self.inherited_end = self.inherited_end or SavedEnd(self._policy.job.verdict, code, time.monotonic())
        return self._going_on

    async def run(self) -> None:
        """Take the job over.

        Raises:
            NothingLeft: nothing of it lives.
            AgentLost: there is no ssh any more.
        """
        assert self.left is not None
        policy, job = self._policy, self._policy.job
        self._going_on = True
        policy.decider.state, policy.hosts, self.inherited_end = self.left.slots, self.left.hosts, self.left.ends
        job.workers.world, job.workers.generation = job.service.world, job.service.generation
        job.history.go_on_from(self.left.history)
        # Already now: workers that stand still tell who has ended, and for whom nobody needs to wait.
        listening = asyncio.create_task(self._listen_again())
        try:
            told = await take_over_hosts(self.left, self._setup, job.hosts, job.workers, self._holds_up)
        except BaseException as error:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            if not isinstance(error, NothingLeft) or self.inherited_end is None:
                raise
            self._console.say("farandole: the launcher was killed when the job was ending; nothing of it is left")
            self._go_on_ending(self.inherited_end)
            return
        self.done = True
        await self._setup.taken_over()
        policy.writer.write()
        job.hosts.let_all_outlive()
        self._console.say(told)
        unheard = job.ending.begun  # The agents were not known yet.
        await self._heard(listening)
        job.service.go_on()
        self._tell_what_happened()
        policy.show_places()
        self._going_on = False
        if unheard:
            job.end_agents(0)
        elif self.inherited_end is not None and not job.ending.begun:
            self._go_on_ending(self.inherited_end)
        policy.happened(events.Tick())

    def _tell_what_happened(self) -> None:
        """Let the policy of the slots, and the roster, know what happened while there was no launcher."""
        policy, job = self._policy, self._policy.job
        for worker in [each for each in job.workers.by_number.values() if each.record.ended and not each.over.is_set()]:
            policy.worker_over(worker)
        for number in living(policy.decider.state).keys() - job.workers.by_number.keys():
            # Its host was being left, and no agent would tell of its end any more.
            job.service.finished(number, "was lost with its launcher", failed=True)
            policy.happened(events.WorkerEnded(number, events.KILLED, "lost with its launcher"))
        for site in [each for each in policy.decider.state.sites if each.phase == "reaching"]:
            if site.label in policy.hosts.hosts:
                job.hosts.reach(policy.hosts.hosts[site.label])
            else:
                policy.happened(events.HostNotReady(site.label, "it is not one of the hosts any more"))
        if job.workers.world != policy.decider.state.members:
            policy.happened(events.WorldBegan(job.workers.world))

    def _go_on_ending(self, end: SavedEnd) -> None:
        job = self._policy.job
        self._going_on = False
        job.ending.stop_code = end.stop_code
        job.end(0 if self._hasty else GRACE_SECONDS, end.verdict)
        job.ending.since = end.since  # A worker that failed after that has not failed by itself.

    def _holds_up(self, label: str) -> bool:
        """Return whether to wait for a host only holds others up: these stand still, and its workers have ended."""
        assert self.left is not None
        service = self._policy.job.service
        here = {number for number, (site, _) in living(self.left.slots).items() if site.label == label}
        return service.stands_still and here.intersection(service.world) <= service.known_to_have_ended

    async def _listen_again(self) -> None:
        await listen_again(self._listen, self._setup.roster, self._console.say, self._goes_on)

    async def _heard(self, listening: asyncio.Task[None]) -> None:
        """Wait until workers reach the roster where they look for it; end the job if that cannot be."""
        try:
            await listening
        except PortLost as error:
            hint = "start it again with --resume auto: it goes on from the last checkpoint, if it has written any"
            self._policy.end_job(events.EndJob(str(error), hint))

    def _goes_on(self) -> bool:
        return not self._policy.job.ending.begun and self.inherited_end is None


async def take_over_hosts(
    failover: FailoverState,
    setup: HostSetup,
    job_hosts: JobHosts,
    workers: Workers,
    holds_up: Callable[[str], bool],
) -> str:
    """Have the hosts, agents and workers that the launcher before had; return the line that tells people.

    Args:
        holds_up: returns whether to wait for a host only holds others up.

    Raises:
        NothingLeft: there are none any more.
        AgentLost: there is no ssh any more.
    """
    found = await asyncio.gather(*(_reach(left, setup, holds_up) for left in failover.job_hosts))
    by_token = {job_host.token: job_host for job_host in found}
    for left in failover.workers:
        if left.token in by_token:
            _have_worker(workers, left, by_token[left.token])
    by_label = {job_host.host.label: job_host for job_host in found}
    for number, (where, _) in living(failover.slots).items():
        # It was about to be started: its agent knows whether it was.
        if number not in workers.by_number and where.label in by_label:
            workers.by_number[number] = Worker(number, by_label[where.label])
    for job_host in found:
        job_hosts.have(job_host)
        site = site_of(failover.slots, job_host.host.label)
        if site is None or site.phase != "ready":
            # The launcher before was about to make certain that nothing of it is left.
            job_host.agent.lose("the launcher was killed when this host was lost already")
    answers = [each for each in await asyncio.gather(*map(_resumed, found)) if each is not None]
    if not answers:
        raise NothingLeft(
            "the launcher was killed, and so were all agents and workers: nothing of the job is left",
            "start it again with --resume auto: it goes on from the last checkpoint, if it has written any",
        )
    return _in_one_line(answers)


async def _reach(left: SavedHost, setup: HostSetup, holds_up: Callable[[str], bool]) -> JobHost:
    needless = partial(holds_up, left.host.label)
    deadline = time.monotonic() + TAKE_OVER_SECONDS
    while True:
        try:
            return await setup.take_over(
                left.host, left.local, left.plan, left.token, left.notice, left.socket_names, needless
            )
        except AgentLost:
            # The launcher may have been killed because this machine has no memory or process to spare.
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(_REST_SECONDS)


def _have_worker(workers: Workers, left: SavedWorker, job_host: JobHost) -> None:
    worker = Worker(left.record.rank, job_host)
    worker.record = left.record
    worker.started_at = left.started_at
    worker.told, worker.was_member, worker.stopped = left.told, left.was_member, left.stopped
    if left.over:
        worker.over.set()
    workers.by_number[worker.number] = worker


async def _resumed(job_host: JobHost) -> Resumed | None:
    """Wait until an agent has said how things are; None when it is lost, which its host is told too."""
    try:
        return await asyncio.wait_for(job_host.agent.resumed(), TAKE_OVER_SECONDS)
    except AgentLost:
        return None
    except (TimeoutError, asyncio.TimeoutError):
        job_host.agent.lose(f"its agent could not be taken over within {TAKE_OVER_SECONDS:g} s")
        return None


def _in_one_line(answers: Sequence[Resumed]) -> str:
    return take_over_message(
        workers=sum(len(each.workers) for each in answers),
        hosts=len(answers),
        seconds=max((each.alone for each in answers), default=0.0),
        lost=sum(each.lost for each in answers),
    )
