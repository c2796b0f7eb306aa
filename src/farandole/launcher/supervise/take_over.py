"""Takes a job over from a launcher that was killed: its hosts with their agents, its workers, its roster.

Everything is as the other one has written it down, and as the agents say it is now; what lies between is told to the
roster and to the policy of the slots as if it had just happened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from farandole.agent.protocol import Resumed
from farandole.launcher.agents.agent_client import AgentLost
from farandole.launcher.host_setup.host_setup import HostSetup, JobHost
from farandole.launcher.slots.slot_state import living, site_of
from farandole.launcher.supervise.failover_files import NothingLeft
from farandole.launcher.supervise.failover_state import FailoverState, SavedHost, SavedWorker
from farandole.launcher.supervise.job_hosts import JobHosts
from farandole.launcher.supervise.messages import take_over_message
from farandole.launcher.supervise.workers import Worker, Workers

# By then a host has let us in and led us to its agent, or it is lost like one that falls silent.
TAKE_OVER_SECONDS = 15.0
# Between two attempts to start what leads to an agent.
_REST_SECONDS = 0.5


async def take_over_hosts(failover: FailoverState, setup: HostSetup, job_hosts: JobHosts, workers: Workers) -> str:
    """Have the hosts, agents and workers that the launcher before had; return the line that tells people.

    Raises:
        NothingLeft: there are none any more.
        AgentLost: there is no ssh any more.
    """
    found = await asyncio.gather(*(_reach(left, setup) for left in failover.job_hosts))
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


async def _reach(left: SavedHost, setup: HostSetup) -> JobHost:
    deadline = time.monotonic() + TAKE_OVER_SECONDS
    while True:
        try:
            return await setup.take_over(left.host, left.local, left.plan, left.token, left.notice, left.doors)
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
