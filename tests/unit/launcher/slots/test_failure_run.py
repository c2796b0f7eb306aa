"""Workers that fail again and again soon after their start, and leave the job with too few workers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from slot_jobs import Job, beginning, ended, said

from farandole.control.launcher.slots.decide import decide
from farandole.control.launcher.slots.failure_run import HEALTHY_SECONDS
from farandole.control.launcher.slots.job_events import (
    FAILED,
    KILLED,
    HostLost,
    HostNotReady,
    HostReady,
    HostsChanged,
    Progressed,
    SlotAction,
    StartWorker,
    WorkerEnded,
)
from farandole.control.launcher.slots.slot_rules import next_due
from farandole.control.roster.events import HoldOver


def fail_until(job: Job, seconds: float, healthy: tuple[int, ...] = ()) -> list[SlotAction]:
    """Let all workers but the healthy ones fail at once, again and again; return the actions that end the job."""
    told: list[SlotAction] = []
    while job.now < seconds and not ended(told):
        running = set(job.workers()).difference(healthy)
        for worker in running:
            told += job.end(worker)
        if not running:
            told += job.wait(min(next_due(job.state, job.now), seconds) - job.now)
    return told


def test_job_whose_only_worker_always_dies_ends_after_the_elastic_timeout() -> None:
    job = Job(beginning(1, 1, timeout=70), ("h1", 1))
    told = fail_until(job, math.inf)
    assert said(told).count("If this goes on for 70 s (the elastic timeout), the job ends") == 1
    (why,) = ended(told)
    assert "failed again and again for 70 s (the elastic timeout)" in why and "fewer than 1 worker" in why
    assert job.now == 1.0 + 70.0, "the time begins with the third failure"


def test_job_with_an_endless_elastic_timeout_says_nothing_of_an_end() -> None:
    job = Job(beginning(1, 1, timeout=math.inf), ("h1", 1))
    told = said(fail_until(job, 100.0))
    assert "fewer than 1 worker (the job's minimum) are left. Look for the cause" in told and "goes on for" not in told


def test_job_that_ends_for_its_failures_does_not_say_that_it_waited_for_workers_as_long() -> None:
    """The roster's wait for the minimum begins with the same failure, and its timer may expire first."""
    state, now = beginning(1, 1, timeout=1.0), 0.0
    for event in (HostsChanged((("h1", 1),)), HostReady("h1"), killed(0), killed(1)):
        state, _, _ = decide(state, event, now)
    waits, now = state.elastic_roster.hold, 1.0
    state, actions, _ = decide(state, HoldOver(waits.kind), now)
    assert StartWorker(2, "h1", 0) in actions and not ended(list(actions))
    state, _, _ = decide(state, killed(2), now)
    assert state.elastic_roster.hold == waits
    _, actions, _ = decide(state, HoldOver(waits.kind), now + 1.0)
    (why,) = ended(list(actions))
    assert "failed again and again for 1 s (the elastic timeout)" in why


def killed(worker: int) -> WorkerEnded:
    return WorkerEnded(worker, KILLED, "killed", "was killed by SIGKILL")


def test_second_failure_in_a_row_says_nothing_of_an_end() -> None:
    job = Job(beginning(1, 1), ("h1", 1))
    told = job.end(0) + job.end(1)
    assert "the job ends" not in said(told)
    job.wait(1)
    assert "the job ends" in said(job.end(2))


def test_job_with_other_workers_ends_if_they_are_too_few() -> None:
    job = Job(beginning(2, 2, timeout=70), ("h1", 1), ("h2", 1))
    job.begin_world(0, 1)
    assert ended(fail_until(job, 200, healthy=(0,)))


def test_job_with_enough_other_workers_goes_on() -> None:
    job = Job(beginning(1, 2, timeout=70), ("h1", 1), ("h2", 1))
    job.begin_world(0, 1)
    told = fail_until(job, 2000, healthy=(0,))
    assert not ended(told) and "the job ends" not in said(told)


def test_workers_that_fail_together_count_once() -> None:
    job = Job(beginning(4, 4, timeout=70), ("h1", 4))
    assert "the job ends" not in said([action for worker in range(4) for action in job.end(worker)])


def test_running_workers_are_not_ended_when_the_time_is_over() -> None:
    job = Job(beginning(1, 1, timeout=70), ("h1", 1))
    for worker in range(4):
        job.end(worker)
        job.wait(8)
    assert job.workers() == [4]
    assert not ended(job.wait(100)), "its start takes long"
    assert ended(job.end(4))


@pytest.mark.parametrize("lives", [True, False])
def test_healthy_worker_is_a_new_beginning(lives: bool) -> None:
    job = Job(beginning(1, 1, timeout=70), ("h1", 1))
    for worker in range(4):
        job.end(worker)
        job.wait(8)
    job.begin_world(4)
    if lives:
        assert not ended(job.wait(HEALTHY_SECONDS + 70))
    job.now += HEALTHY_SECONDS
    told = job.end(4) + job.end(5) + job.wait(1) + job.end(6)
    assert not ended(told) and "the job ends" not in said(told)


def test_preempted_workers_that_were_healthy_never_end_the_job() -> None:
    job = Job(beginning(2, 2, timeout=70), ("h1", 2))
    for first in range(0, 40, 2):
        job.begin_world(first, first + 1)
        job.now += HEALTHY_SECONDS
        told = job.end(first) + job.end(first + 1)
        assert not ended(told) and "the job ends" not in said(told)


def test_lost_hosts_never_count() -> None:
    job = Job(beginning(1, 1, timeout=70), ("h1", 1))
    for worker in range(20):
        job.tell(HostLost("h1"))
        told = job.end(worker) + job.tell(HostNotReady("h1", "lost")) + job.wait(60) + job.tell(HostReady("h1"))
        assert not ended(told) and "If this goes on" not in said(told)
        assert job.workers() == [worker + 1]


def test_job_without_hosts_waits_for_them_although_workers_have_failed() -> None:
    """The time for new hosts is over later."""
    job = Job(beginning(1, 1, timeout=70), ("h1", 1))
    fail_until(job, 10)
    job.tell(HostsChanged(()))
    for worker in set(job.workers()):
        job.end(worker)
    assert not ended(job.wait(65))
    assert "have a place" in ended(job.wait(10))[0]


def test_smaller_job_begins_anew() -> None:
    job = Job(beginning(2, 2, timeout=70), ("h1", 1), ("h2", 1))
    job.begin_world(0, 1)
    fail_until(job, 10, healthy=(0,))
    job.resize(1, 2)
    job.now += 1000
    job.begin_world(0)
    for _ in range(2):
        for worker in job.workers():
            assert not ended(job.end(worker))


def test_failures_with_an_exit_code_count_as_well() -> None:
    job = Job(beginning(1, 1, timeout=70), ("h1", 1))
    job.begin_world(0)
    job.tell(Progressed())
    for worker in range(3):
        job.begin_world(worker)
        told = job.end(worker, FAILED, f"ConnectionError: port {worker}")
        job.wait(2)
    assert "If this goes on" in said(told)


def test_time_of_failures_moves_with_the_clock() -> None:
    from farandole.control.launcher.supervise.moved_clock import moved_state

    job = Job(beginning(1, 1, timeout=70), ("h1", 1))
    fail_until(job, 10)
    before = job.state.failure_run
    assert before.since == 1.0
    assert moved_state(job.state, 100.0).failure_run == replace(before, since=101.0)
