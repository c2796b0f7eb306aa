"""The visible state of a job, from its supervisor in this process."""

from __future__ import annotations

import time

from farandole.base.wire.rendezvous import Progress
from farandole.control.jobs.view import JobView, WorkerView
from farandole.control.launcher.output.status_line import Pace
from farandole.control.launcher.supervise.control import Status
from farandole.control.launcher.supervise.supervisor import Supervisor

_NOTHING_TOLD = Progress(0, 0.0)
_NO_PACE = Pace(0, None, None)
MOST_ENDED = 20
"""Number of ended workers that are shown: the latest ones."""


class SupervisedJob:
    """Answers the requests that are the same for all kinds of jobs: see `control.ControlledJob`.

    Args:
        supervisor: the supervisor of the job.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.stop = supervisor.stop
        self.kill = supervisor.kill

    def view(self) -> JobView:
        """Return the whole state of the job, except its output."""
        return view_of(self._supervisor)

    def status(self) -> Status:
        """Return the status of the job."""
        state = self._supervisor.state
        return {
            "size": len(state.world),
            "generation": state.generation,
            "waits_for": self._supervisor.messages.waits_for,
            "steps_per_second": self._supervisor.status.steps_per_second,
            "measures": self._supervisor.measures.latest,
            "scheduled_batch": self._supervisor.service.scheduled_batch,
        }


def view_of(job: Supervisor) -> JobView:
    """Return the current state of the job, without its name and its output."""
    workers, history, status = job.workers, job.history, job.status.now
    world = {worker: rank for rank, worker in enumerate(job.state.world)}
    history.forget(workers)
    slowest, paces = status.slowest, status.paces
    ended = [number for number, each in workers.by_number.items() if each.record.ended and number not in world]
    others = [number for number, each in workers.by_number.items() if not each.record.ended]
    shown = dict.fromkeys((*world, *others, *ended[-MOST_ENDED:]))
    return JobView(
        at=time.time(),
        state=job.messages.waits_for,
        generation=job.state.generation,
        size=len(world),
        per_second=status.steps_per_second,
        slow=() if slowest is None else slowest.ranks,
        slow_waiting=0.0 if slowest is None else slowest.waited,
        workers=tuple(_worker(job, number, world.get(number), paces.get(number, _NO_PACE)) for number in shown),
        moments=history.moments,
        losses=history.losses,
        joins=history.joins,
        stalls=history.stalls,
        timeline=job.timeline,
    )


def _worker(job: Supervisor, number: int, rank: int | None, pace: Pace) -> WorkerView:
    workers = job.workers
    known = workers.by_number.get(number)
    told = job.history.reports.get(number, _NOTHING_TOLD)
    runs = known is not None and not known.record.ended
    return WorkerView(
        worker=number,
        rank=rank,
        host=workers.host_of(number),
        runs=runs,
        end=_end(job, number),
        steps=told.steps,
        per_second=pace.per_second if runs else None,
        waiting=pace.waiting if runs else None,
        stalls=told.stalls,
        stalled_at=told.stalled_at,
        metrics=told.metrics if runs else "",
    )


def _end(job: Supervisor, number: int) -> str:
    known = job.workers.by_number.get(number)
    if known is None or not known.record.ended:
        return ""
    return known.end or ("has finished" if known.record.exit_code == 0 else "was ended")
