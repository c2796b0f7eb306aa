"""The slots that get a worker, and when: hosts that appear, disappear, shrink, or cannot be reached."""

from __future__ import annotations

import math

import pytest
from slot_jobs import Job, beginning, ended, said, started

from farandole.control.launcher.slots.job_events import (
    SUCCEEDED,
    DrainWorkers,
    EndHost,
    HostLeaves,
    HostLost,
    HostNoticed,
    HostNotReady,
    HostReady,
    HostRemoved,
    HostsChanged,
    ReachHost,
    Say,
    StopWorkers,
    Tick,
)
from farandole.control.launcher.slots.slot_rules import apply, describe, next_due


def test_disappearing_host_is_drained_then_ended() -> None:
    job = Job(beginning(1, 4, grace=10), ("h1", 2), ("h2", 2))
    job.begin_world(0, 1, 2, 3)
    actions = job.tell(HostsChanged((("h1", 2),)))
    assert DrainWorkers((2, 3), "host h2 is gone") in actions
    job.begin_world(0, 1)
    assert not started(job.end(2, SUCCEEDED))
    assert not job.state.finished
    assert job.wait(10.5) == [StopWorkers((3,), "did not leave within 10 s")]
    assert job.end(3) == [EndHost("h2")]


def test_returning_host_gets_new_workers_while_old_ones_leave() -> None:
    job = Job(beginning(1, None, grace=10), ("h1", 2))
    job.tell(HostsChanged(()))
    job.tell(HostsChanged((("h1", 2),)))
    assert job.workers() == [0, 1]
    assert started(job.end(0, SUCCEEDED)) == [(2, "h1", 0)]


def test_shrinking_host_keeps_its_first_slots() -> None:
    job = Job(beginning(1, None), ("h1", 3))
    actions = job.tell(HostsChanged((("h1", 1),)))
    assert DrainWorkers((1, 2), "host h1 has only 1 slot now") in actions
    assert "host h1 has only 1 slot now; workers 1 and 2 there leave at the end of a step, within 30 s; 1" in said(
        actions
    )
    job.end(1)
    job.end(2)
    assert [slot.index for slot in job.state.sites[0].slots] == [0]
    assert started(job.tell(HostsChanged((("h1", 2),)))) == [(3, "h1", 1)]


def test_terminated_agent_lets_its_workers_leave() -> None:
    job = Job(beginning(1, None), ("h1", 1), ("h2", 1))
    actions = job.tell(HostLeaves("h2"))
    assert "host h2 was asked to end" in said(actions)
    assert DrainWorkers((1,), "host h2 is gone") in actions


def test_host_with_preemption_notice_gets_no_workers() -> None:
    job = Job(beginning(1, 4, grace=5), ("h1", 2), ("h2", 2))
    job.begin_world(0, 1, 2, 3)
    actions = job.tell(HostNoticed("h2", "terminate at 12:00"))
    assert said(actions) == (
        "farandole: host h2 is about to be reclaimed (terminate at 12:00); workers 2 and 3 there leave at the end of "
        "a step, within 5 s; 2 other workers stay; no workers are started there meanwhile"
    )
    assert DrainWorkers((2, 3), "host h2 is about to be reclaimed") in actions
    assert not job.tell(HostNoticed("h2", "terminate at 12:01"))
    assert not started(job.end(2, SUCCEEDED))
    assert [each.workers for each in job.wait(6) if isinstance(each, StopWorkers)] == [(3,)]
    assert not started(job.end(3))
    assert describe(job.state.sites[1], job.now) == "about to be reclaimed: terminate at 12:00"
    job.wait(54)
    actions = job.tell(HostNoticed("h2", ""))
    assert said(actions) == (
        "farandole: host h2 stays (the notice was withdrawn after 60 s); "
        "workers can start there again if the job needs them"
    )
    assert started(actions) == [(4, "h2", 0), (5, "h2", 1)]


def test_host_with_preemption_notice_is_replaced_by_unused_host() -> None:
    job = Job(beginning(1, 1), ("h1", 1))
    job.tell(HostsChanged((("h1", 1), ("h2", 1))))
    assert ReachHost("h2") in job.tell(HostNoticed("h1", "soon"))
    assert started(job.tell(HostReady("h2"))) == [(1, "h2", 0)]
    assert started(job.end(0)) == []


def test_returning_host_reports_its_preemption_notice_again() -> None:
    job = Job(beginning(1, 2), ("h1", 1), ("h2", 1))
    job.tell(HostNoticed("h2", "soon"))
    job.tell(HostLost("h2"))
    job.end(1)
    job.tell(HostNotReady("h2", "no route"))
    job.tell(HostNoticed("h2", "soon"))
    assert not started(job.tell(HostReady("h2")))
    assert started(job.tell(HostNoticed("h2", ""))) == [(2, "h2", 0)]


@pytest.mark.parametrize(("timeout", "limit"), [(60, ", for 60 s at most"), (math.inf, "")])
def test_all_hosts_may_have_preemption_notices(timeout: float, limit: str) -> None:
    job = Job(beginning(1, 2, timeout=timeout), ("h1", 1), ("h2", 1))
    job.begin_world(0, 1)
    job.tell(HostNoticed("h1", "soon"))
    actions = job.tell(HostNoticed("h2", "soon"))
    assert "worker 1 there leaves at the end of a step, within 30 s; no other worker stays" in said(actions)
    assert f"0 of at least 1 worker have a slot; the job waits for more slots{limit}" in said(actions).splitlines()[-1]
    assert "inf" not in said(actions)


def test_removed_host_loses_its_workers_at_once() -> None:
    job = Job(beginning(1, None), ("h1", 1), ("h2", 2))
    actions = job.tell(HostRemoved("h2"))
    assert said(actions) == "farandole: host h2 is removed, with workers 1 and 2; 1 other worker continues"
    assert StopWorkers((1, 2), "was removed with its host") in actions
    assert not [each for each in job.tell(HostsChanged((("h1", 1),))) if isinstance(each, DrainWorkers | Say)]
    job.end(1)
    assert EndHost("h2") in job.end(2)


def test_unreachable_host_is_retried_with_backoff() -> None:
    job = Job(beginning(1, 1), ("h1", 1))
    job.end(0)
    assert "it is tried again at once" in said(job.tell(HostNotReady("h1", "the connection ended")))
    assert "it is tried again in 1 s" in said(job.tell(HostNotReady("h1", "the connection ended")))
    assert ReachHost("h1") in job.wait(1.0)


def test_no_worker_starts_on_lost_host_before_it_is_reached_again() -> None:
    job = Job(beginning(1, 2), ("h1", 2))
    assert job.tell(HostLost("h1")) == []
    assert not started(job.end(0) + job.end(1))
    assert ReachHost("h1") in job.tell(HostNotReady("h1", "the agent died"))
    assert len(started(job.tell(HostReady("h1")))) == 2


def test_worker_of_lost_host_is_replaced_before_its_end_is_certain() -> None:
    job = Job(beginning(1, 2), ("h1", 1), ("h2", 1))
    job.begin_world(0, 1)
    job.tell(HostLost("h2"))
    assert ReachHost("h3") in job.tell(HostsChanged((("h1", 1), ("h3", 1))))

    assert started(job.tell(HostReady("h3"))) == [(2, "h3", 0)]

    job.begin_world(0, 2)
    assert not [each for each in job.end(1) if isinstance(each, DrainWorkers)]


def test_refused_host_is_not_retried_until_it_has_disappeared_and_returned() -> None:
    job = Job(beginning(1, 4), ("h1", 1), ("h2", 1))
    job.end(1)
    assert "host h2 is left out: it has farandole 0.1" in said(
        job.tell(HostNotReady("h2", "it has farandole 0.1", refused=True))
    )
    assert job.wait(1000) == []
    assert ReachHost("h2") not in job.tell(HostsChanged((("h1", 2), ("h2", 1))))
    job.tell(HostsChanged((("h1", 1),)))
    assert ReachHost("h2") in job.tell(HostsChanged((("h1", 1), ("h2", 1))))


def test_job_without_usable_hosts_ends() -> None:
    state, _, _ = apply(beginning(1, 2), HostsChanged((("h1", 1),)), 0.0)
    _, actions, _ = apply(state, HostNotReady("h1", "wrong version", refused=True), 0.0)
    assert ended(list(actions)) == ["no host can take part: wrong version"]


def test_missing_slots_are_waited_for_with_message_and_timeout() -> None:
    job = Job(beginning(3, 4, timeout=20), ("h1", 1))
    assert job.state.short_since == 0.0
    assert job.wait(10) == []
    assert next_due(job.state, job.now) == 20.0
    assert "only 1 of at least 3 workers have a place" in ended(job.wait(10))[0]


def test_host_may_have_no_slots_for_a_while() -> None:
    job = Job(beginning(1, 4, timeout=20), ("h1", 2))
    actions = job.tell(HostsChanged((("h1", 0),)))
    assert DrainWorkers((0, 1), "host h1 has no slots now") in actions
    job.end(0)
    job.end(1)
    assert job.workers() == [] and job.state.short_since == job.now
    assert started(job.tell(HostsChanged((("h1", 1),)))) == [(2, "h1", 0)]


def test_hosts_without_slots_count_as_missing() -> None:
    state, actions, _ = apply(beginning(1, 4, timeout=20), HostsChanged((("h1", 0), ("h2", 0))), 0.0)
    assert (
        said(list(actions))
        == "farandole: 0 of at least 1 worker have a slot; the job waits for more slots, for 20 s at most"
    )
    assert ReachHost("h2") in apply(state, HostsChanged((("h1", 0), ("h2", 1))), 1.0)[1]
    assert ended(apply(state, Tick(), 20.0)[1])
