"""Takes a job over from a launcher that was killed: its hosts with their agents, its workers, its roster.

The initial state is the one that the other launcher wrote; differences from what agents report now become events, as if
they had just happened.
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

# Seconds within which a host's agent must be connected; otherwise the host counts as lost.
TAKE_OVER_SECONDS = 15.0
# Seconds between two attempts to start the process that connects to an agent.
_REST_SECONDS = 0.5


async def take_over(
    job: Supervisor, left: FailoverState, setup: HostSetup, listen: Callable[[], Awaitable[object]], console: Console
) -> None:
    """Continue the job of a killed launcher, whose last state the supervisor already has.

    Args:
        job: the supervisor of this launcher.
        left: the facts that the killed launcher has left.
        setup: connects to the agents.
        listen: starts the roster's listener for workers.
        console: the terminal that messages are written to.

    Raises:
        NothingLeft: no part of the job is alive.
        AgentLost: ssh is missing on this machine.
    """
    job.holds_end = True
    job.service.pause()
    job.hosts.known = left.hosts
    job.history.go_on_from(left.history)
    job.hosts.witnesses.go_on_with(left.witnesses, (each.host.label for each in left.job_hosts))
    # Already now: workers that wait report which others have ended, and so need not be waited for.
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
        _decide_on_missed_events(job)
    job.holds_end = False
    job.happened(events.TakenOver())
    job.service.resume()


def _holds_up(job: Supervisor, left: FailoverState, label: str) -> bool:
    """Return whether waiting for a host only delays the others: they wait for a world, and its workers have ended."""
    here = {number for number, (site, _) in living(left.state).items() if site.label == label}
    return job.service.members_wait and here.intersection(left.state.world) <= job.service.known_to_have_ended


async def _heard(job: Supervisor, listening: asyncio.Task[None]) -> None:
    """Wait until workers can reach the roster at its old address; end the job if that fails."""
    try:
        await listening
    except PortLost as error:
        hint = "start it again with --resume auto: it goes on from the last checkpoint, if it has written any"
        job.happened(events.CannotGoOn(str(error), hint))


def _decide_on_missed_events(job: Supervisor) -> None:
    """Decide on events that occurred while there was no launcher."""
    for worker in [each for each in job.workers.by_number.values() if each.record.ended and not each.over.is_set()]:
        job.worker_over(worker)
    for number in living(job.state).keys() - job.workers.by_number.keys():
        # Its host was being released, and no agent would report its end any more.
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
    """Adopt the hosts, agents and workers of the previous launcher; return the line for people.

    Args:
        holds_up: returns whether waiting for a host only delays the others.

    Raises:
        NothingLeft: none of them is left.
        AgentLost: ssh is missing on this machine.
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
            # The previous launcher was about to make certain that nothing of it is left.
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
    """Return the state that an agent reports; None if the agent is lost, or does not report in time."""
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
