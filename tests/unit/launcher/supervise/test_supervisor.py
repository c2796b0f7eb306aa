"""The order in which the supervisor of a job decides on what has happened."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from checked_channel import CheckedChannel
from membership import after, started

from farandole.base.wire.frames import Codec
from farandole.base.wire.rendezvous import FromWorker, Join
from farandole.control.agent.protocol import Exited
from farandole.control.launcher.slots.job_events import HostLost
from farandole.control.launcher.slots.job_state import JobState, Site, Slot, SlotPolicy, living
from farandole.control.launcher.supervise.supervisor import Supervisor
from farandole.control.launcher.supervise.workers import Worker
from farandole.control.roster.elastic import ElasticState
from farandole.control.roster.events import Finished, Hold, Joined, Left
from farandole.control.roster.listener import Client


def supervisor(roster: ElasticState, *lost: int) -> Supervisor:
    """Return the supervisor of a job whose workers have a host each; those in `lost` have ended."""
    here = [worker for worker in roster.hosts if worker not in lost]
    sites = tuple(Site(f"h{worker}", 1, (Slot(0, worker),), phase="ready") for worker in here)
    console = SimpleNamespace(say=lambda text: None, has_status=False, show_status=lambda text: None)
    spec = SimpleNamespace(elastic=SimpleNamespace(search_timeout=0.0), output_dir=None, witnesses=0, host_timeout=1.75)
    observer = SimpleNamespace(worker_failed=lambda rank, code: None)
    context = SimpleNamespace(spec=spec, console=console, log=lambda line: None, call=None, observer=observer)
    state = JobState(SlotPolicy(), roster, sites, next_worker=100)
    return Supervisor(cast("Any", context), state, b"s" * 32)


async def close(job: Supervisor) -> None:
    job.decisions.close()
    job.messages.waits(Hold(""))
    await job.background.end()
    await job.service.close()


def test_worker_that_joins_just_before_its_host_is_lost_is_still_suspected() -> None:
    async def run() -> ElasticState:
        workers = range(100)
        roster = after(started(*workers, most=100), *(Joined(worker, f"at {worker}") for worker in workers))
        # The roster waits for many workers, so it does not decide at once when one of them joins.
        roster = after(roster, Finished(50, "was killed", failed=True))
        job = supervisor(roster, 50)
        client = Client(5, CheckedChannel(), Codec[FromWorker](FromWorker))
        await job.service.heard(client, Join("at 5", 0.0, generation=1, trained=True))
        job.happened(HostLost("h5", "it is silent", (5,), local=False))
        job.service.decide_on_joins()
        await close(job)
        return job.state.elastic_roster

    state = asyncio.run(asyncio.wait_for(run(), 60))
    assert 5 in state.waiting
    assert 5 in state.suspects


def test_workers_that_leave_and_end_well_in_one_turn_are_decided_on_together() -> None:
    async def run() -> None:
        job = supervisor(after(started(0, 1, 2), *(Joined(worker, f"at {worker}") for worker in range(3))))
        workers = [ended(job, worker, 0) for worker in (0, 1)]
        for worker in workers:
            job.happened(Left(worker.number, 1))
        for worker in workers:
            job.worker_over(worker)
        assert not job.state.elastic_roster.done
        # What is written for a successor before the decision must not say that they are over.
        assert not any(worker.over.is_set() for worker in workers)
        await asyncio.sleep(0)
        assert set(living(job.state)) == {2}
        assert job.state.finished
        assert all(worker.over.is_set() for worker in workers)
        await close(job)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_worker_that_is_killed_is_decided_on_at_once() -> None:
    async def run() -> None:
        job = supervisor(after(started(0, 1, 2), *(Joined(worker, f"at {worker}") for worker in range(3))))
        job.happened(Left(0, 1))
        job.worker_over(ended(job, 1, -9))
        assert job.state.elastic_roster.done == {0}
        assert job.state.elastic_roster.gone == {1}
        await close(job)

    asyncio.run(asyncio.wait_for(run(), 60))


def ended(job: Supervisor, number: int, code: int) -> Worker:
    """Return a worker of the job whose process has ended."""
    host = SimpleNamespace(host=SimpleNamespace(label=f"h{number}"))
    worker = job.workers.by_number[number] = Worker(number, cast("Any", host))
    worker.process_ended(Exited(number, code))
    return worker
