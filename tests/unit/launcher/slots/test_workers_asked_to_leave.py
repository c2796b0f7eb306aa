"""The slots that get a worker, and when: workers that are asked to leave, and the slots that they will free."""

from __future__ import annotations

from slot_jobs import Job, beginning, ended, said, started

from farandole.control.launcher.slots.job_events import (
    FINISHED,
    STATE_LOST,
    SUCCEEDED,
    DrainWorkers,
    HostNoticed,
    HostReady,
    HostsChanged,
)
from farandole.control.launcher.slots.worker_rules import will_start
from farandole.control.roster.events import Leaves


def test_shrinking_job_lets_newest_workers_leave() -> None:
    job = Job(beginning(1, 4), ("h1", 4))
    job.begin_world(0, 1, 2, 3)
    actions = job.resize(1, 2)
    assert [each.workers for each in actions if isinstance(each, DrainWorkers)] == [(2, 3)]
    job.end(2)
    job.end(3)
    assert [worker for worker, _, _ in started(job.resize(1, 3))] == [4]


def test_spares_leave_before_members() -> None:
    job = Job(beginning(1, 2, spares=2), ("h1", 4))
    job.begin_world(1, 3)
    actions = job.resize(1, 1)
    # One member is over the most; of the others, one may stay as a spare, and the member's place makes it two.
    assert [each.workers for each in actions if isinstance(each, DrainWorkers)] == [(3,)]


def test_one_extra_worker_is_started_when_all_must_leave() -> None:
    job = Job(beginning(1, 2), ("h1", 2))
    job.tell(HostsChanged((("h2", 2),)))
    assert started(job.tell(HostReady("h2"))) == [(2, "h2", 0)]
    assert started(job.end(1, SUCCEEDED)) == []
    assert started(job.end(0, SUCCEEDED)) == [(3, "h2", 1)]


def asked(job: Job, *workers: int) -> str:
    """Let workers get SIGTERM, and return what is said of that."""
    return "\n".join(said(job.tell(Leaves(worker, "it got SIGTERM"))) for worker in workers)


def test_slots_of_leaving_workers_count_as_coming() -> None:
    job = Job(beginning(1, 2), ("h1", 2))
    job.begin_world(0, 1)
    assert asked(job, 1) == (
        "farandole: worker 1 on h1 was asked to leave: it got SIGTERM; it leaves at the end of a step, within 30 s; "
        "1 other worker stays"
    )
    assert will_start(job.state, job.now)
    assert "no other worker stays" in asked(job, 0) and asked(job, 0) == "", "each is told of once"
    assert will_start(job.state, job.now)
    job.begin_world(0)
    assert started(job.end(1, SUCCEEDED)) == [(2, "h1", 1)]
    assert not will_start(job.state, job.now), "the last slot is not free before another one has the state"
    job.begin_world(0, 2)
    job.begin_world(2)
    assert started(job.end(0, SUCCEEDED)) == [(3, "h1", 0)]


def test_one_worker_is_started_beside_leaving_workers() -> None:
    job = Job(beginning(1, 2), ("h1", 3))
    job.begin_world(0, 1)
    asked(job, 0)
    assert started(job.tell(Leaves(1, "it got SIGTERM"))) == [(2, "h1", 2)]


def test_slots_that_stay_empty_do_not_count_as_coming() -> None:
    job = Job(beginning(1, 2), ("h1", 1), ("h2", 1))
    job.begin_world(0, 1)
    asked(job, 0, 1)
    assert will_start(job.state, job.now)
    job.tell(HostNoticed("h2", "soon"))
    assert not will_start(job.state, job.now)
    single = Job(beginning(1, 1), ("h1", 1))
    single.begin_world(0)
    asked(single, 0)
    assert not will_start(single.state, single.now), "the slot is its own: it would wait for nobody"


def test_job_whose_workers_all_leave_has_not_finished() -> None:
    job = Job(beginning(1, 1), ("h1", 1))
    job.begin_world(0)
    asked(job, 0)
    actions = job.end(0, SUCCEEDED)
    assert started(actions) == [(1, "h1", 0)] and ended(actions) == []
    job.begin_world(1)
    (end,) = ended(job.end(1, STATE_LOST, "nobody is left"))
    assert end == (
        "all workers that held the state of the training were asked to leave before it was finished, and no other "
        "worker has it"
    )


def test_leaving_worker_may_still_finish() -> None:
    job = Job(beginning(1, 2), ("h1", 2))
    job.begin_world(0, 1)
    asked(job, 0, 1)
    assert started(job.end(0, FINISHED)) == []
    assert ended(job.end(1, FINISHED)) == [""]
