"""Takes a job over from a launcher that was killed: its hosts with their agents, its workers, its roster.

Everything is as the other one has written it down, and as the agents say it is now; what lies between becomes events as
if it had just happened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from farandole.control.agent.protocol import Resumed
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.host_setup.host_setup import HostSetup, JobHost
from farandole.control.launcher.output.console import Console
from farandole.control.launcher.slots import job_events as events
from farandole.control.launcher.slots.job_state import living, site_of
from farandole.control.launcher.supervise.failover_files import NothingLeft
from farandole.control.launcher.supervise.failover_state import FailoverState, SavedHost, SavedWorker
from farandole.control.launcher.supervise.job_hosts import JobHosts
from farandole.control.launcher.supervise.messages import take_over_message
from farandole.control.launcher.supervise.roster_port import PortLost, listen_again
from farandole.control.launcher.supervise.supervisor import Supervisor
from farandole.control.launcher.supervise.workers import Worker, Workers

# By then a host has let us in and led us to its agent, or it is lost like one that falls silent.
TAKE_OVER_SECONDS = 15.0
# Between two attempts to start what leads to an agent.
_REST_SECONDS = 0.5


async def take_over(
    job: Supervisor, left: FailoverState, setup: HostSetup, listen: Callable[[], Awaitable[object]], console: Console
) -> None:
    """Go on where the launcher before was killed; the supervisor has the state already that it has left.

    Args:
        job: of this launcher.
        left: what the launcher before has left.
        setup: leads to the agents.
        listen: lets workers reach the roster.
        console: the terminal that messages are written to.

    Raises:
        NothingLeft: nothing of the job lives.
        AgentLost: there is no ssh any more.
    """
    job.holds_end = True
    job.service.hold_back()
    job.hosts.known = left.hosts
    job.history.go_on_from(left.history)
    # Already now: workers that stand still tell who has ended, and for whom nobody needs to wait.
    listening = asyncio.create_task(listen_again(listen, setup.roster, console.say, lambda: not job.ends))
    try:
        told = await take_over_hosts(left, setup, job.hosts, job.workers, lambda label: _holds_up(job, left, label))
    except BaseException as error:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        if not isinstance(error, NothingLeft) or not job.ends:
            raise
        console.say("farandole: the launcher was killed when the job was ending; nothing of it is left")
    else:
        job.has_taken_over = True
        await setup.taken_over()
        job.failover.write()
        job.hosts.let_all_outlive()
        console.say(told)
        await _heard(job, listening)
        _tell_what_happened(job)
    job.holds_end = False
    job.happened(events.TakenOver())
    job.service.go_on()


def _holds_up(job: Supervisor, left: FailoverState, label: str) -> bool:
    """Return whether to wait for a host only holds others up: these stand still, and its workers have ended."""
    here = {number for number, (site, _) in living(left.state).items() if site.label == label}
    return job.service.stands_still and here.intersection(left.state.world) <= job.service.known_to_have_ended


async def _heard(job: Supervisor, listening: asyncio.Task[None]) -> None:
    """Wait until workers reach the roster where they look for it; end the job if that cannot be."""
    try:
        await listening
    except PortLost as error:
        hint = "start it again with --resume auto: it goes on from the last checkpoint, if it has written any"
        job.happened(events.CannotGoOn(str(error), hint))


def _tell_what_happened(job: Supervisor) -> None:
    """Let the decisions follow that come from what happened while there was no launcher."""
    for worker in [each for each in job.workers.by_number.values() if each.record.ended and not each.over.is_set()]:
        job.worker_over(worker)
    for number in living(job.state).keys() - job.workers.by_number.keys():
        # Its host was being left, and no agent would tell of its end any more.
        lost = "lost with its launcher"
        job.happened(events.WorkerEnded(number, events.KILLED, lost, f"was {lost}"))
    for site in [each for each in job.state.sites if each.phase == "reaching"]:
        if site.label in job.hosts.known.hosts:
            job.hosts.reach(site.label)
        else:
            job.happened(events.HostNotReady(site.label, "it is not one of the hosts any more"))


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
    for number, (where, _) in living(failover.state).items():
        # It was about to be started: its agent knows whether it was.
        if number not in workers.by_number and where.label in by_label:
            workers.by_number[number] = Worker(number, by_label[where.label])
    for job_host in found:
        job_hosts.have(job_host)
        site = site_of(failover.state, job_host.host.label)
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
