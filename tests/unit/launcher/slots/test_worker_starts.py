"""The slots that get a worker, and when: the first workers, and replacements of failed workers."""

from __future__ import annotations

import math

from slot_jobs import Job, beginning, ended, said, started

from farandole.control.launcher.slots.failure_rules import FLAPS
from farandole.control.launcher.slots.job_events import (
    FAILED,
    DrainWorkers,
    HostNotReady,
    HostReady,
    HostsChanged,
    Progressed,
    ReachHost,
)
from farandole.control.launcher.slots.job_state import expected_size
from farandole.control.launcher.slots.slot_rules import apply, next_due
from farandole.control.launcher.slots.worker_rules import will_start


def test_hosts_are_filled_in_order_up_to_max_np_and_spares() -> None:
    job = Job(beginning(1, 3, spares=1), ("h1", 2), ("h2", 4))
    assert [(site.label, [slot.worker for slot in site.slots]) for site in job.state.sites] == [
        ("h1", [0, 1]),
        ("h2", [2, 3, None, None]),
    ]


def test_unneeded_hosts_are_not_contacted() -> None:
    state, actions, _ = apply(beginning(1, 2), HostsChanged((("h1", 2), ("h2", 2))), 0.0)
    assert actions == [ReachHost("h1")]
    _, actions, _ = apply(state, HostNotReady("h1", "no route to host"), 1.0)
    assert actions[1:] == [ReachHost("h1")]  # At once, the first time.


def test_first_workers_start_together_unless_a_host_is_missing() -> None:
    state, _, _ = apply(beginning(1, 4, first_size=3), HostsChanged((("h1", 2), ("h2", 2))), 0.0)
    state, actions, _ = apply(state, HostReady("h1"), 0.1)
    assert actions == []
    assert len(started(apply(state, HostReady("h2"), 0.2)[1])) == 4
    assert len(started(apply(state, HostNotReady("h2", "no route"), 0.2)[1])) == 2


def test_first_world_has_requested_workers_and_others_follow() -> None:
    job = Job(beginning(1, 5, spares=1, first_most=2), ("h1", 8))
    assert job.workers() == [0, 1, 2]  # One is a spare.
    assert expected_size(job.state) == 2
    assert started(job.end(1)) == [(3, "h1", 1)]
    assert [worker for worker, _, _ in started(job.begin_world(0, 2))] == [4, 5, 6]
    assert expected_size(job.state) == 5


def test_size_of_first_world_follows_changed_minimum() -> None:
    job = Job(beginning(1, 4, first_most=1), ("h1", 4))
    assert started(job.resize(3, 4)) == [(1, "h1", 1), (2, "h1", 2)]


def test_known_host_stays_before_new_ones() -> None:
    job = Job(beginning(1, 2), ("h1", 1))
    job.tell(HostsChanged((("h0", 1), ("h1", 1))))
    assert [site.label for site in job.state.sites] == ["h1", "h0"]
    assert started(job.tell(HostReady("h0"))) == [(1, "h0", 0)]


def test_killed_worker_is_replaced_at_once_and_later_with_backoff() -> None:
    job = Job(beginning(1, 1), ("h1", 1))
    waits = []
    for worker in range(4):
        actions = job.end(worker)
        waits.append(next_due(job.state, job.now) - job.now if not started(actions) else 0.0)
        if waits[-1]:
            assert f"in {waits[-1]:g} s" in said(actions)
            actions = job.wait(waits[-1])
        assert started(actions) == [(worker + 1, "h1", 0)]
    assert waits == [0, 1, 2, 4]


def test_failure_of_healthy_worker_resets_backoff() -> None:
    job = Job(beginning(1, 1), ("h1", 1))
    job.end(0)
    job.end(1)
    job.wait(1.0)
    job.begin_world(2)
    job.now += 60
    assert started(job.end(2)) == [(3, "h1", 0)]


def test_host_with_many_failures_is_avoided_with_backoff() -> None:
    job = Job(beginning(1, 8), ("h1", FLAPS), ("h2", 1))
    job.begin_world(*job.workers())
    for worker in range(FLAPS - 1):
        assert "quarantine" not in said(job.end(worker))
    assert (
        "host h1 is in quarantine: 5 workers failed on it within 60 s; no workers are started there for 30 s"
        in said(job.end(FLAPS - 1))
    )
    running = job.workers()
    assert not started(job.wait(29))
    assert [label for _, label, _ in started(job.wait(1.5))] == ["h1"]
    assert set(running) < set(job.workers())


def test_first_workers_wait_for_earlier_hosts() -> None:
    state, _, _ = apply(beginning(1, 4, first_size=2), HostsChanged((("h1", 2), ("h2", 2))), 0.0)
    state, actions, _ = apply(state, HostReady("h2"), 0.1)
    assert started(list(actions)) == []
    state, actions, _ = apply(state, HostReady("h1"), 0.2)
    assert started(list(actions)) == [(0, "h1", 0), (1, "h1", 1), (2, "h2", 0), (3, "h2", 1)]


def test_newcomers_that_fail_to_join_do_not_end_the_job() -> None:
    job = Job(beginning(1, 2), ("h1", 2))
    job.begin_world(0, 1)
    job.tell(Progressed())
    job.end(1)
    for worker in (2, 3, 4, 5):
        job.wait(60)
        assert not ended(job.end(worker, FAILED, "ImportError: no such module"))


def test_failure_counts_even_if_next_world_began_before_process_ended() -> None:
    job = Job(beginning(1, 2), ("h1", 2))
    job.begin_world(0, 1)
    job.begin_world(0)
    assert started(job.end(1)) == [(2, "h1", 1)]
    assert not started(job.end(2))  # It backs off.


def test_workers_are_promised_while_a_host_is_being_reached() -> None:
    job = Job(beginning(1, 4), ("h1", 2))
    assert not will_start(job.state, job.now)
    job.tell(HostsChanged((("h2", 2),)))
    assert will_start(job.state, job.now)
    assert started(job.tell(HostReady("h2"))) == [(2, "h2", 0), (3, "h2", 1)]
    assert not will_start(job.state, job.now)
    job.tell(HostsChanged(()))
    assert not will_start(job.state, job.now)


def test_horovod_blacklist_excludes_whole_host_for_good() -> None:
    job = Job(beginning(1, 4, blacklist=True), ("h1", 2), ("h2", 2))
    job.begin_world(0, 1, 2, 3)
    actions = job.end(2)
    assert "host h2 is blacklisted: worker 2 failed on it; worker 3 there leaves at the end of a step" in said(actions)
    assert DrainWorkers((3,), "host h2 is blacklisted") in actions
    assert not started(job.end(3) + job.wait(1e6))
    assert math.isinf(next_due(job.state, job.now))
    job.end(0)
    assert ended(job.end(1)) == ["all hosts are blacklisted"]


def test_horovod_cooldown_readmits_host() -> None:
    job = Job(beginning(1, 4, blacklist=True, cooldown=(10, 15)), ("h1", 1), ("h2", 1))
    for wait in (10, 15, 15):
        assert f"blacklisted for {wait} s" in said(job.end(job.workers()[-1]))
        assert not started(job.wait(wait - 0.5))
        assert len(started(job.wait(1))) == 1
