"""Which slots get a worker, and when: the first workers, and those that take the place of workers that failed."""

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


def test_hosts_are_filled_in_their_order_up_to_the_most_and_the_spares() -> None:
    job = Job(beginning(1, 3, spares=1), ("h1", 2), ("h2", 4))
    assert [(site.label, [slot.worker for slot in site.slots]) for site in job.state.sites] == [
        ("h1", [0, 1]),
        ("h2", [2, 3, None, None]),
    ]


def test_hosts_that_are_not_needed_are_not_reached() -> None:
    state, actions, _ = apply(beginning(1, 2), HostsChanged((("h1", 2), ("h2", 2))), 0.0)
    assert actions == [ReachHost("h1")]
    _, actions, _ = apply(state, HostNotReady("h1", "no route to host"), 1.0)
    assert actions[1:] == [ReachHost("h1")]  # At once, the first time.


def test_the_first_workers_start_together_unless_a_host_does_not_come() -> None:
    state, _, _ = apply(beginning(1, 4, first_size=3), HostsChanged((("h1", 2), ("h2", 2))), 0.0)
    state, actions, _ = apply(state, HostReady("h1"), 0.1)
    assert actions == []
    assert len(started(apply(state, HostReady("h2"), 0.2)[1])) == 4
    assert len(started(apply(state, HostNotReady("h2", "no route"), 0.2)[1])) == 2


def test_the_first_world_has_the_workers_that_were_asked_for_and_others_come_after_it() -> None:
    job = Job(beginning(1, 5, spares=1, first_most=2), ("h1", 8))
    assert job.workers() == [0, 1, 2]  # One is a spare.
    assert expected_size(job.state) == 2
    assert started(job.end(1)) == [(3, "h1", 1)]
    assert [worker for worker, _, _ in started(job.begin_world(0, 2))] == [4, 5, 6]
    assert expected_size(job.state) == 5


def test_the_first_world_can_be_of_the_least_size_that_is_wanted_meanwhile() -> None:
    job = Job(beginning(1, 4, first_most=1), ("h1", 4))
    assert started(job.resize(3, 4)) == [(1, "h1", 1), (2, "h1", 2)]


def test_a_known_host_stays_before_new_ones() -> None:
    job = Job(beginning(1, 2), ("h1", 1))
    job.tell(HostsChanged((("h0", 1), ("h1", 1))))
    assert [site.label for site in job.state.sites] == ["h1", "h0"]
    assert started(job.tell(HostReady("h0"))) == [(1, "h0", 0)]


def test_a_killed_worker_is_replaced_at_once_then_later_and_later() -> None:
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


def test_a_worker_that_was_healthy_counts_as_the_first_to_fail() -> None:
    job = Job(beginning(1, 1), ("h1", 1))
    job.end(0)
    job.end(1)
    job.wait(1.0)
    job.begin_world(2)
    job.now += 60
    assert started(job.end(2)) == [(3, "h1", 0)]


def test_a_host_on_which_many_fail_is_left_alone_for_longer_and_longer() -> None:
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


def test_the_first_workers_wait_for_hosts_that_come_first() -> None:
    state, _, _ = apply(beginning(1, 4, first_size=2), HostsChanged((("h1", 2), ("h2", 2))), 0.0)
    state, actions, _ = apply(state, HostReady("h2"), 0.1)
    assert started(list(actions)) == []
    state, actions, _ = apply(state, HostReady("h1"), 0.2)
    assert started(list(actions)) == [(0, "h1", 0), (1, "h1", 1), (2, "h2", 0), (3, "h2", 1)]


def test_newcomers_that_never_get_into_the_world_do_not_end_it() -> None:
    job = Job(beginning(1, 2), ("h1", 2))
    job.begin_world(0, 1)
    job.tell(Progressed())
    job.end(1)
    for worker in (2, 3, 4, 5):
        job.wait(60)
        assert not ended(job.end(worker, FAILED, "ImportError: no such module"))


def test_a_failure_counts_though_the_world_has_gone_on_before_the_process_was_gone() -> None:
    job = Job(beginning(1, 2), ("h1", 2))
    job.begin_world(0, 1)
    job.begin_world(0)
    assert started(job.end(1)) == [(2, "h1", 1)]
    assert not started(job.end(2))  # It backs off.


def test_while_a_host_is_reached_workers_will_be_started() -> None:
    job = Job(beginning(1, 4), ("h1", 2))
    assert not will_start(job.state, job.now)
    job.tell(HostsChanged((("h2", 2),)))
    assert will_start(job.state, job.now)
    assert started(job.tell(HostReady("h2"))) == [(2, "h2", 0), (3, "h2", 1)]
    assert not will_start(job.state, job.now)
    job.tell(HostsChanged(()))
    assert not will_start(job.state, job.now)


def test_horovods_blacklist_takes_the_whole_host_for_good() -> None:
    job = Job(beginning(1, 4, blacklist=True), ("h1", 2), ("h2", 2))
    job.begin_world(0, 1, 2, 3)
    actions = job.end(2)
    assert "host h2 is blacklisted: worker 2 failed on it; worker 3 there leaves at the end of a step" in said(actions)
    assert DrainWorkers((3,), "host h2 is blacklisted") in actions
    assert not started(job.end(3) + job.wait(1e6))
    assert math.isinf(next_due(job.state, job.now))
    job.end(0)
    assert ended(job.end(1)) == ["all hosts are blacklisted"]


def test_horovods_cooldown_gives_the_host_back() -> None:
    job = Job(beginning(1, 4, blacklist=True, cooldown=(10, 15)), ("h1", 1), ("h2", 1))
    for wait in (10, 15, 15):
        assert f"blacklisted for {wait} s" in said(job.end(job.workers()[-1]))
        assert not started(job.wait(wait - 0.5))
        assert len(started(job.wait(1))) == 1
