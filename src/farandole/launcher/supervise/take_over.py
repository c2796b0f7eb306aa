"""Takes a job over from a launcher that was killed: its hosts with their agents, its workers, its roster.

Everything is as the other one has written it down, and as the agents say it is now; what lies between is told to the
roster and to the policy of the slots as if it had just happened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from farandole.agent.messages import Resumed
from farandole.launcher.agents.agent_client import AgentLost
from farandole.launcher.host_setup.host_setup import Reception, Station
from farandole.launcher.slots.slot_state import living, site_of
from farandole.launcher.supervise.elastic_hosts import Stations
from farandole.launcher.supervise.failover_files import NothingLeft
from farandole.launcher.supervise.failover_state import Legacy, StationLeft, WorkerLeft
from farandole.launcher.supervise.messages import tell_succession
from farandole.launcher.supervise.workers import Crew, Worker

# By then a host has let us in and led us to its agent, or it is lost like one that falls silent.
TAKE_OVER_SECONDS = 15.0
# Between two attempts to start what leads to an agent.
_REST_SECONDS = 0.5


async def take_over_hosts(legacy: Legacy, reception: Reception, stations: Stations, crew: Crew) -> str:
    """Have the hosts, agents and workers that the launcher before had; return the line that tells people.

    Raises:
        NothingLeft: there are none any more.
        AgentLost: there is no ssh any more.
    """
    found = await asyncio.gather(*(_reach(left, reception) for left in legacy.stations))
    by_token = {station.token: station for station in found}
    for left in legacy.workers:
        if left.token in by_token:
            _have_worker(crew, left, by_token[left.token])
    by_label = {station.host.label: station for station in found}
    for number, (where, _) in living(legacy.slots).items():
        # It was about to be started: its agent knows whether it was.
        if number not in crew.workers and where.label in by_label:
            crew.workers[number] = Worker(number, by_label[where.label])
    for station in found:
        stations.have(station)
        site = site_of(legacy.slots, station.host.label)
        if site is None or site.phase != "ready":
            # The launcher before was about to make certain that nothing of it is left.
            station.agent.lose("the launcher was killed when this host was lost already")
    answers = [each for each in await asyncio.gather(*map(_resumed, found)) if each is not None]
    if not answers:
        raise NothingLeft(
            "the launcher was killed, and so were all agents and workers: nothing of the job is left",
            "start it again with --resume auto: it goes on from the last checkpoint, if it has written any",
        )
    return _in_one_line(answers)


async def _reach(left: StationLeft, reception: Reception) -> Station:
    deadline = time.monotonic() + TAKE_OVER_SECONDS
    while True:
        try:
            return await reception.take_over(left.host, left.local, left.plan, left.token, left.notice, left.doors)
        except AgentLost:
            # The launcher may have been killed because this machine has no memory or process to spare.
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(_REST_SECONDS)


def _have_worker(crew: Crew, left: WorkerLeft, station: Station) -> None:
    worker = Worker(left.record.rank, station)
    worker.record = left.record
    worker.started_at = left.started_at
    worker.told, worker.was_member, worker.stopped = left.told, left.was_member, left.stopped
    if left.over:
        worker.over.set()
    crew.workers[worker.number] = worker


async def _resumed(station: Station) -> Resumed | None:
    """Wait until an agent has said how things are; None when it is lost, which its station is told too."""
    try:
        return await asyncio.wait_for(station.agent.resumed(), TAKE_OVER_SECONDS)
    except AgentLost:
        return None
    except (TimeoutError, asyncio.TimeoutError):
        station.agent.lose(f"its agent could not be taken over within {TAKE_OVER_SECONDS:g} s")
        return None


def _in_one_line(answers: Sequence[Resumed]) -> str:
    return tell_succession(
        workers=sum(len(each.workers) for each in answers),
        hosts=len(answers),
        seconds=max((each.alone for each in answers), default=0.0),
        lost=sum(each.lost for each in answers),
    )
