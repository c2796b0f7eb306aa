"""The order in which the supervisor of a job decides on what has happened."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from checked_channel import CheckedChannel
from membership import after, started

from farandole.base.wire.frames import Codec
from farandole.base.wire.rendezvous import FromWorker, Join
from farandole.control.launcher.slots.job_events import HostLost
from farandole.control.launcher.slots.job_state import JobState, Site, Slot, SlotPolicy
from farandole.control.launcher.supervise.supervisor import Supervisor
from farandole.control.roster.elastic import ElasticState
from farandole.control.roster.events import Finished, Hold, Joined
from farandole.control.roster.listener import Client


def test_worker_that_joins_just_before_its_host_is_lost_is_still_suspected() -> None:
    async def run() -> ElasticState:
        workers = range(100)
        roster = after(started(*workers, most=100), *(Joined(worker, f"at {worker}") for worker in workers))
        # The roster waits for many workers, so it does not decide at once when one of them joins.
        roster = after(roster, Finished(50, "was killed", failed=True))
        sites = tuple(Site(f"h{worker}", 1, (Slot(0, worker),), phase="ready") for worker in workers if worker != 50)
        console = SimpleNamespace(say=lambda text: None, has_status=False, show_status=lambda text: None)
        spec = SimpleNamespace(elastic=SimpleNamespace(search_timeout=0.0), output_dir=None)
        context = SimpleNamespace(spec=spec, console=console, log=lambda line: None, call=None)
        job = Supervisor(cast("Any", context), JobState(SlotPolicy(), roster, sites, next_worker=100), b"s" * 32)
        client = Client(5, CheckedChannel(), Codec[FromWorker](FromWorker))
        await job.service.heard(client, Join("at 5", 0.0, generation=1, trained=True))
        job.happened(HostLost("h5", "it is silent", (5,), local=False))
        job.service.decide_on_joins()
        job.decisions.close()
        job.messages.waits(Hold(""))
        await job.service.close()
        return job.state.elastic_roster

    state = asyncio.run(asyncio.wait_for(run(), 60))
    assert 5 in state.waiting
    assert 5 in state.suspects
