"""Which slots get a worker, and when: event by event, and by random simulation."""

from __future__ import annotations

import math
import random

import pytest

from farandole.launcher.slots.decide import decide, describe, next_due
from farandole.launcher.slots.failure_rules import FLAPS
from farandole.launcher.slots.slot_events import (
    FAILED,
    FINISHED,
    KILLED,
    STATE_LOST,
    SUCCEEDED,
    Action,
    DrainWorkers,
    EndHost,
    EndJob,
    Event,
    Finishing,
    HostLeaves,
    HostLost,
    HostNoticed,
    HostNotReady,
    HostReady,
    HostRemoved,
    HostsChanged,
    Progressed,
    ReachHost,
    Resized,
    Say,
    StartWorker,
    StopWorkers,
    Tick,
    WorkerEnded,
    WorkerLeaves,
    WorldBegan,
)
from farandole.launcher.slots.slot_state import SlotPolicy, State, living
from farandole.launcher.slots.worker_rules import will_start


class Job:
    """A policy at work, on a clock of its own."""

    def __init__(self, policy: SlotPolicy, *hosts: tuple[str, int]) -> None:
        self.state = State(policy)
        self.now = 0.0
        self.tell(HostsChanged(hosts))
        for label, _ in hosts:
            self.tell(HostReady(label))

    def tell(self, event: Event) -> list[Action]:
        self.state, actions, reason = decide(self.state, event, self.now)
        assert reason
        return list(actions)

    def wait(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.tell(Tick())

    def workers(self) -> list[int]:
        return sorted(living(self.state))

    def end(self, worker: int, how: str = KILLED, what: str = "") -> list[Action]:
        return self.tell(WorkerEnded(worker, how, what))


def started(actions: list[Action]) -> list[tuple[int, str, int]]:
    return [(each.worker, each.label, each.slot) for each in actions if isinstance(each, StartWorker)]


def ended(actions: list[Action]) -> list[str]:
    return [each.why for each in actions if isinstance(each, EndJob)]


def said(actions: list[Action]) -> str:
    return "\n".join(each.text for each in actions if isinstance(each, Say))


def test_hosts_are_filled_in_their_order_up_to_the_most_and_the_spares() -> None:
    job = Job(SlotPolicy(1, 3, spares=1), ("h1", 2), ("h2", 4))
    assert [(site.label, [slot.worker for slot in site.slots]) for site in job.state.sites] == [
        ("h1", [0, 1]),
        ("h2", [2, 3, None, None]),
    ]


def test_hosts_that_are_not_needed_are_not_reached() -> None:
    state, actions, _ = decide(State(SlotPolicy(1, 2)), HostsChanged((("h1", 2), ("h2", 2))), 0.0)
    assert actions == (ReachHost("h1"),)
    _, actions, _ = decide(state, HostNotReady("h1", "no route to host"), 1.0)
    assert actions[1:] == (ReachHost("h1"),)  # At once, the first time.


def test_the_first_workers_start_together_unless_a_host_does_not_come() -> None:
    state, _, _ = decide(State(SlotPolicy(1, 4, first_size=3)), HostsChanged((("h1", 2), ("h2", 2))), 0.0)
    state, actions, _ = decide(state, HostReady("h1"), 0.1)
    assert actions == ()
    assert len(started(list(decide(state, HostReady("h2"), 0.2)[1]))) == 4
    assert len(started(list(decide(state, HostNotReady("h2", "no route"), 0.2)[1]))) == 2


def test_a_known_host_stays_before_new_ones() -> None:
    job = Job(SlotPolicy(1, 2), ("h1", 1))
    job.tell(HostsChanged((("h0", 1), ("h1", 1))))
    assert [site.label for site in job.state.sites] == ["h1", "h0"]
    assert started(job.tell(HostReady("h0"))) == [(1, "h0", 0)]


def test_a_killed_worker_is_replaced_at_once_then_later_and_later() -> None:
    job = Job(SlotPolicy(1, 1), ("h1", 1))
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
    job = Job(SlotPolicy(1, 1), ("h1", 1))
    job.end(0)
    job.end(1)
    job.wait(1.0)
    job.tell(WorldBegan((2,)))
    job.now += 60
    assert started(job.end(2)) == [(3, "h1", 0)]


def test_a_host_on_which_many_fail_is_left_alone_for_longer_and_longer() -> None:
    job = Job(SlotPolicy(1, 8), ("h1", FLAPS), ("h2", 1))
    job.tell(WorldBegan(tuple(job.workers())))
    for worker in range(FLAPS - 1):
        assert "quarantine" not in said(job.end(worker))
    assert "host h1 is in quarantine: 5 workers failed on it within 60 s; nothing is started there for 30 s" in said(
        job.end(FLAPS - 1)
    )
    running = job.workers()
    assert not started(job.wait(29))
    assert [label for _, label, _ in started(job.wait(1.5))] == ["h1"]
    assert set(running) < set(job.workers())


def test_a_host_that_leaves_is_drained_then_ended() -> None:
    job = Job(SlotPolicy(1, 4, grace=10), ("h1", 2), ("h2", 2))
    job.tell(WorldBegan((0, 1, 2, 3)))
    actions = job.tell(HostsChanged((("h1", 2),)))
    assert DrainWorkers((2, 3), "host h2 is gone") in actions
    job.tell(WorldBegan((0, 1)))
    assert not started(job.end(2, SUCCEEDED))
    assert not job.state.finished
    assert job.wait(10.5) == [StopWorkers((3,), "did not leave within 10 s")]
    assert job.end(3) == [EndHost("h2")]


def test_a_host_that_comes_back_gets_new_workers_while_the_old_ones_leave() -> None:
    job = Job(SlotPolicy(1, None, grace=10), ("h1", 2))
    job.tell(HostsChanged(()))
    job.tell(HostsChanged((("h1", 2),)))
    assert job.workers() == [0, 1]
    assert started(job.end(0, SUCCEEDED)) == [(2, "h1", 0)]


def test_a_host_that_shrinks_keeps_its_first_slots() -> None:
    job = Job(SlotPolicy(1, None), ("h1", 3))
    actions = job.tell(HostsChanged((("h1", 1),)))
    assert DrainWorkers((1, 2), "host h1 has only 1 slot now") in actions
    assert "host h1 has only 1 slot now; workers 1 and 2 there leave at the end of a step, within 30 s; 1" in said(
        actions
    )
    job.end(1)
    job.end(2)
    assert [slot.index for slot in job.state.sites[0].slots] == [0]
    assert started(job.tell(HostsChanged((("h1", 2),)))) == [(3, "h1", 1)]


def test_an_agent_that_was_asked_to_end_has_its_workers_leave() -> None:
    job = Job(SlotPolicy(1, None), ("h1", 1), ("h2", 1))
    actions = job.tell(HostLeaves("h2"))
    assert "host h2 was asked to end" in said(actions)
    assert DrainWorkers((1,), "host h2 is gone") in actions


def test_a_host_that_is_about_to_be_taken_away_gets_no_workers_while_the_notice_stands() -> None:
    job = Job(SlotPolicy(1, 4, grace=5), ("h1", 2), ("h2", 2))
    job.tell(WorldBegan((0, 1, 2, 3)))
    actions = job.tell(HostNoticed("h2", "terminate at 12:00"))
    assert said(actions) == (
        "farandole: host h2 is about to be taken away (terminate at 12:00); workers 2 and 3 there leave at the end of "
        "a step, within 5 s; 2 other workers stay; none is started there meanwhile"
    )
    assert DrainWorkers((2, 3), "host h2 is about to be taken away") in actions
    assert not job.tell(HostNoticed("h2", "terminate at 12:01"))
    assert not started(job.end(2, SUCCEEDED))
    assert [each.workers for each in job.wait(6) if isinstance(each, StopWorkers)] == [(3,)]
    assert not started(job.end(3))
    assert describe(job.state.sites[1], job.now) == "about to be taken away: terminate at 12:00"
    job.wait(54)
    actions = job.tell(HostNoticed("h2", ""))
    assert said(actions) == (
        "farandole: host h2 stays (the notice is gone after 60 s); workers start there again as far as the job needs "
        "them"
    )
    assert started(actions) == [(4, "h2", 0), (5, "h2", 1)]


def test_a_host_with_a_notice_makes_room_for_one_that_was_not_needed() -> None:
    job = Job(SlotPolicy(1, 1), ("h1", 1))
    job.tell(HostsChanged((("h1", 1), ("h2", 1))))
    assert ReachHost("h2") in job.tell(HostNoticed("h1", "soon"))
    assert started(job.tell(HostReady("h2"))) == [(1, "h2", 0)]
    assert started(job.end(0)) == []


def test_a_host_that_was_taken_away_and_comes_back_says_anew_how_it_is() -> None:
    job = Job(SlotPolicy(1, 2), ("h1", 1), ("h2", 1))
    job.tell(HostNoticed("h2", "soon"))
    job.tell(HostLost("h2"))
    job.end(1)
    job.tell(HostNotReady("h2", "no route"))
    job.tell(HostNoticed("h2", "soon"))
    assert not started(job.tell(HostReady("h2")))
    assert started(job.tell(HostNoticed("h2", ""))) == [(2, "h2", 0)]


def test_all_hosts_may_be_about_to_be_taken_away() -> None:
    job = Job(SlotPolicy(1, 2, timeout=60), ("h1", 1), ("h2", 1))
    job.tell(WorldBegan((0, 1)))
    job.tell(HostNoticed("h1", "soon"))
    actions = job.tell(HostNoticed("h2", "soon"))
    assert "worker 1 there leaves at the end of a step, within 30 s; no other worker stays" in said(actions)
    assert "0 of at least 1 worker have a place; the job waits for more hosts, for 60 s at most" in said(actions)


def test_a_host_that_is_removed_loses_its_workers_at_once() -> None:
    job = Job(SlotPolicy(1, None), ("h1", 1), ("h2", 2))
    actions = job.tell(HostRemoved("h2"))
    assert said(actions) == "farandole: host h2 is removed, with workers 1 and 2; 1 other worker goes on"
    assert StopWorkers((1, 2), "was removed with its host") in actions
    assert not [each for each in job.tell(HostsChanged((("h1", 1),))) if isinstance(each, DrainWorkers | Say)]
    job.end(1)
    assert EndHost("h2") in job.end(2)


def test_a_job_that_is_to_be_smaller_lets_the_newest_go() -> None:
    job = Job(SlotPolicy(1, 4), ("h1", 4))
    job.tell(WorldBegan((0, 1, 2, 3)))
    actions = job.tell(Resized(1, 2))
    assert [each.workers for each in actions if isinstance(each, DrainWorkers)] == [(2, 3)]
    job.end(2)
    job.end(3)
    assert [worker for worker, _, _ in started(job.tell(Resized(1, 3)))] == [4]


def test_spares_go_before_members() -> None:
    job = Job(SlotPolicy(1, 2, spares=2), ("h1", 4))
    job.tell(WorldBegan((1, 3)))
    actions = job.tell(Resized(1, 1))
    # One member is over the most; of the others, one may stay as a spare, and the member's place makes it two.
    assert [each.workers for each in actions if isinstance(each, DrainWorkers)] == [(3,)]


def test_all_that_were_started_first_fail_before_any_gets_anywhere() -> None:
    job = Job(SlotPolicy(1, 2), ("h1", 2))
    assert not ended(job.end(0, FAILED, "SyntaxError"))
    assert "all workers that were started first failed" in ended(job.end(1, FAILED, "SyntaxError"))[0]
    assert job.wait(100) == []


def test_first_workers_that_were_killed_are_replaced() -> None:
    job = Job(SlotPolicy(1, 2), ("h1", 2))
    job.end(0)
    assert not ended(job.end(1))


def test_all_fail_after_some_progress_and_are_started_again() -> None:
    job = Job(SlotPolicy(1, 2), ("h1", 2))
    job.tell(WorldBegan((0, 1)))
    job.tell(Progressed())
    job.end(0, FAILED, "a")
    assert not ended(job.end(1, FAILED, "b"))


def test_first_workers_that_fail_do_not_end_a_world_of_others() -> None:
    job = Job(SlotPolicy(1, 2), ("h1", 2))
    job.tell(WorldBegan((0, 1)))
    job.end(0, FAILED, "a")
    job.tell(WorldBegan((1, 2)))
    assert not ended(job.end(1, FAILED, "b"))


def test_a_job_whose_state_is_lost_ends_at_once() -> None:
    job = Job(SlotPolicy(1, 2), ("h1", 2))
    job.tell(WorldBegan((0, 1)))
    job.tell(Progressed())
    job.end(0, FAILED, "a")
    job.end(1, FAILED, "b")
    job.tell(WorldBegan((2, 3)))
    (end,) = job.end(2, STATE_LOST, "nobody is left")
    assert isinstance(end, EndJob) and "--resume auto" in end.hint
    assert "all workers that held the state of the training are lost" in end.why


def test_the_same_failure_of_the_same_rank_ends_the_job_the_third_time() -> None:
    job = Job(SlotPolicy(1, 2), ("h1", 2))
    job.tell(WorldBegan((0, 1)))
    job.tell(Progressed())
    actions = job.end(1, FAILED, "ValueError: boom")
    for worker in (2, 3):
        assert not ended(actions)
        job.wait(2)
        job.tell(WorldBegan((0, worker)))
        actions = job.end(worker, FAILED, "ValueError: boom")
    assert ended(actions) == ["rank 1 failed 3 times in a row in the same way (ValueError: boom)"]
    assert said(actions) == "", "nothing is told of what would be started next"


def test_the_first_workers_wait_for_hosts_that_come_first() -> None:
    state, _, _ = decide(State(SlotPolicy(1, 4, first_size=2)), HostsChanged((("h1", 2), ("h2", 2))), 0.0)
    state, actions, _ = decide(state, HostReady("h2"), 0.1)
    assert started(list(actions)) == []
    state, actions, _ = decide(state, HostReady("h1"), 0.2)
    assert started(list(actions)) == [(0, "h1", 0), (1, "h1", 1), (2, "h2", 0), (3, "h2", 1)]


def test_newcomers_that_never_get_into_the_world_do_not_end_it() -> None:
    job = Job(SlotPolicy(1, 2), ("h1", 2))
    job.tell(WorldBegan((0, 1)))
    job.tell(Progressed())
    job.end(1)
    for worker in (2, 3, 4, 5):
        job.wait(60)
        assert not ended(job.end(worker, FAILED, "ImportError: no such module"))


def test_a_failure_counts_though_the_world_has_gone_on_before_the_process_was_gone() -> None:
    job = Job(SlotPolicy(1, 2), ("h1", 2))
    job.tell(WorldBegan((0, 1)))
    job.tell(WorldBegan((0,)))
    assert started(job.end(1)) == [(2, "h1", 1)]
    assert not started(job.end(2))  # It backs off.


def test_who_left_the_world_and_does_not_end_is_ended() -> None:
    job = Job(SlotPolicy(1, 2, grace=5), ("h1", 2))
    job.tell(WorldBegan((0, 1)))
    job.tell(WorldBegan((1,)))
    assert [each.workers for each in job.wait(5.5) if isinstance(each, StopWorkers)] == [(0,)]


def test_nothing_starts_once_a_worker_has_finished_and_the_job_ends_with_the_last() -> None:
    job = Job(SlotPolicy(1, 2, spares=1), ("h1", 4))
    job.tell(WorldBegan((0, 1)))
    assert job.end(0, SUCCEEDED) == []
    assert ended(job.end(1, KILLED)) == [""]  # The spare waits for nothing.


def test_who_finishes_and_whose_world_goes_on_without_it_is_not_replaced() -> None:
    job = Job(SlotPolicy(1, 3), ("h1", 2))
    job.tell(WorldBegan((0, 1)))
    job.tell(Finishing(True))
    job.tell(WorldBegan((0,)))
    assert started(job.end(1, FINISHED)) == []
    assert started(job.end(0, KILLED)) == [] and job.state.ended


def test_while_a_worker_has_finished_as_far_as_is_known_nobody_is_started() -> None:
    job = Job(SlotPolicy(1, 3), ("h1", 2))
    job.tell(WorldBegan((0, 1)))
    job.tell(Finishing(True))
    assert not will_start(job.state, job.now)
    assert started(job.tell(HostsChanged((("h1", 3),)))) == []
    assert started(job.tell(Finishing(False))) == [(2, "h1", 2)]


def test_newcomers_that_are_refused_as_the_job_is_about_to_end_have_not_failed() -> None:
    job = Job(SlotPolicy(1, 3), ("h1", 3))
    job.tell(WorldBegan((0, 1)))
    job.tell(Finishing(True))
    assert job.end(2, SUCCEEDED) == []
    assert job.state.sites[0].slots[2].failures == 0
    assert started(job.tell(Finishing(False))) == [(3, "h1", 2)], "the one that had finished has failed after all"


def test_a_job_ends_when_nobody_is_left_though_the_end_of_the_one_that_finished_was_missed() -> None:
    job = Job(SlotPolicy(1, 1), ("h1", 1))
    job.tell(WorldBegan((0,)))
    job.tell(Finishing(True))
    assert ended(job.end(0, KILLED)) == [""]


def test_a_command_without_worlds_ends_when_all_have_ended() -> None:
    job = Job(SlotPolicy(1, 2), ("h1", 2))
    assert job.end(0, SUCCEEDED) == []
    assert ended(job.end(1, SUCCEEDED)) == [""]


def test_a_host_that_cannot_be_reached_is_tried_again_later_and_later() -> None:
    job = Job(SlotPolicy(1, 1), ("h1", 1))
    job.end(0)
    assert "it is tried again at once" in said(job.tell(HostNotReady("h1", "the connection ended")))
    assert "it is tried again in 1 s" in said(job.tell(HostNotReady("h1", "the connection ended")))
    assert ReachHost("h1") in job.wait(1.0)


def test_no_worker_starts_on_a_host_that_is_lost_before_it_is_reached_again() -> None:
    job = Job(SlotPolicy(1, 2), ("h1", 2))
    assert job.tell(HostLost("h1")) == []
    assert not started(job.end(0) + job.end(1))
    assert ReachHost("h1") in job.tell(HostNotReady("h1", "the agent died"))
    assert len(started(job.tell(HostReady("h1")))) == 2


def test_a_host_that_is_refused_is_not_tried_before_it_has_gone_and_come_back() -> None:
    job = Job(SlotPolicy(1, 4), ("h1", 1), ("h2", 1))
    job.end(1)
    assert "host h2 is left out: it has farandole 0.1" in said(
        job.tell(HostNotReady("h2", "it has farandole 0.1", refused=True))
    )
    assert job.wait(1000) == []
    assert ReachHost("h2") not in job.tell(HostsChanged((("h1", 2), ("h2", 1))))
    job.tell(HostsChanged((("h1", 1),)))
    assert ReachHost("h2") in job.tell(HostsChanged((("h1", 1), ("h2", 1))))


def test_a_job_without_any_usable_host_ends() -> None:
    state, _, _ = decide(State(SlotPolicy(1, 2)), HostsChanged((("h1", 1),)), 0.0)
    _, actions, _ = decide(state, HostNotReady("h1", "wrong version", refused=True), 0.0)
    assert ended(list(actions)) == ["no host can take part: wrong version"]


def test_too_few_slots_are_waited_for_visibly_and_with_an_end() -> None:
    job = Job(SlotPolicy(3, 4, timeout=20), ("h1", 1))
    assert job.state.short_since == 0.0
    assert job.wait(10) == []
    assert next_due(job.state, job.now) == 20.0
    assert "only 1 of at least 3 workers have a place" in ended(job.wait(10))[0]


def test_a_host_may_have_no_slots_for_a_while() -> None:
    job = Job(SlotPolicy(1, 4, timeout=20), ("h1", 2))
    actions = job.tell(HostsChanged((("h1", 0),)))
    assert DrainWorkers((0, 1), "host h1 has no slot now") in actions
    job.end(0)
    job.end(1)
    assert job.workers() == [] and job.state.short_since == job.now
    assert started(job.tell(HostsChanged((("h1", 1),)))) == [(2, "h1", 0)]


def test_hosts_without_slots_are_not_reached_and_waited_for_as_if_there_were_none() -> None:
    state, actions, _ = decide(State(SlotPolicy(1, 4, timeout=20)), HostsChanged((("h1", 0), ("h2", 0))), 0.0)
    assert (
        said(list(actions))
        == "farandole: 0 of at least 1 worker have a place; the job waits for more hosts, for 20 s at most"
    )
    assert ReachHost("h2") in decide(state, HostsChanged((("h1", 0), ("h2", 1))), 1.0)[1]
    assert ended(list(decide(state, Tick(), 20.0)[1]))


def test_when_all_are_to_leave_one_is_started_to_take_over_though_there_is_no_room() -> None:
    job = Job(SlotPolicy(1, 2), ("h1", 2))
    job.tell(HostsChanged((("h2", 2),)))
    assert started(job.tell(HostReady("h2"))) == [(2, "h2", 0)]
    assert started(job.end(1, SUCCEEDED)) == []
    assert started(job.end(0, SUCCEEDED)) == [(3, "h2", 1)]


def test_while_a_host_is_reached_workers_will_be_started() -> None:
    job = Job(SlotPolicy(1, 4), ("h1", 2))
    assert not will_start(job.state, job.now)
    job.tell(HostsChanged((("h2", 2),)))
    assert will_start(job.state, job.now)
    assert started(job.tell(HostReady("h2"))) == [(2, "h2", 0), (3, "h2", 1)]
    assert not will_start(job.state, job.now)
    job.tell(HostsChanged(()))
    assert not will_start(job.state, job.now)


def asked(job: Job, *workers: int) -> str:
    """Let workers get SIGTERM, and return what is said of that."""
    return "\n".join(said(job.tell(WorkerLeaves(worker, "it got SIGTERM"))) for worker in workers)


def test_the_slots_of_workers_that_were_asked_to_leave_are_about_to_be_free() -> None:
    job = Job(SlotPolicy(1, 2), ("h1", 2))
    job.tell(WorldBegan((0, 1)))
    assert asked(job, 1) == (
        "farandole: worker 1 on h1 was asked to leave: it got SIGTERM; it leaves at the end of a step, within 30 s; "
        "1 other worker stays"
    )
    assert will_start(job.state, job.now)
    assert "no other worker stays" in asked(job, 0) and asked(job, 0) == "", "each is told of once"
    assert will_start(job.state, job.now)
    job.tell(WorldBegan((0,)))
    assert started(job.end(1, SUCCEEDED)) == [(2, "h1", 1)]
    assert not will_start(job.state, job.now), "the last slot is not free before another one has the state"
    job.tell(WorldBegan((0, 2)))
    job.tell(WorldBegan((2,)))
    assert started(job.end(0, SUCCEEDED)) == [(3, "h1", 0)]


def test_one_is_started_beside_those_that_were_all_asked_to_leave() -> None:
    job = Job(SlotPolicy(1, 2), ("h1", 3))
    job.tell(WorldBegan((0, 1)))
    asked(job, 0)
    assert started(job.tell(WorkerLeaves(1, "it got SIGTERM"))) == [(2, "h1", 2)]


def test_slots_that_get_nobody_are_not_about_to_be_free() -> None:
    job = Job(SlotPolicy(1, 2), ("h1", 1), ("h2", 1))
    job.tell(WorldBegan((0, 1)))
    asked(job, 0, 1)
    assert will_start(job.state, job.now)
    job.tell(HostNoticed("h2", "soon"))
    assert not will_start(job.state, job.now)
    single = Job(SlotPolicy(1, 1), ("h1", 1))
    single.tell(WorldBegan((0,)))
    asked(single, 0)
    assert not will_start(single.state, single.now), "it is the worker's own, who would wait for nobody"


def test_a_job_whose_workers_were_all_asked_to_leave_has_not_finished() -> None:
    job = Job(SlotPolicy(1, 1), ("h1", 1))
    job.tell(WorldBegan((0,)))
    asked(job, 0)
    actions = job.end(0, SUCCEEDED)
    assert started(actions) == [(1, "h1", 0)] and ended(actions) == []
    job.tell(WorldBegan((1,)))
    (end,) = ended(job.end(1, STATE_LOST, "nobody is left"))
    assert end == (
        "all workers that held the state of the training were asked to leave before it was finished, and no other "
        "worker has it"
    )


def test_who_was_asked_to_leave_and_finishes_meanwhile_has_finished() -> None:
    job = Job(SlotPolicy(1, 2), ("h1", 2))
    job.tell(WorldBegan((0, 1)))
    asked(job, 0, 1)
    assert started(job.end(0, FINISHED)) == []
    assert ended(job.end(1, FINISHED)) == [""]


def test_horovods_blacklist_takes_the_whole_host_for_good() -> None:
    job = Job(SlotPolicy(1, 4, blacklist=True), ("h1", 2), ("h2", 2))
    job.tell(WorldBegan((0, 1, 2, 3)))
    actions = job.end(2)
    assert "host h2 is blacklisted: worker 2 failed on it; worker 3 there leaves at the end of a step" in said(actions)
    assert DrainWorkers((3,), "host h2 is blacklisted") in actions
    assert not started(job.end(3) + job.wait(1e6))
    assert math.isinf(next_due(job.state, job.now))
    job.end(0)
    assert ended(job.end(1)) == ["all hosts are blacklisted"]


def test_horovods_cooldown_gives_the_host_back() -> None:
    job = Job(SlotPolicy(1, 4, blacklist=True, cooldown=(10, 15)), ("h1", 1), ("h2", 1))
    for wait in (10, 15, 15):
        assert f"blacklisted for {wait} s" in said(job.end(job.workers()[-1]))
        assert not started(job.wait(wait - 0.5))
        assert len(started(job.wait(1))) == 1


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens_the_rules_hold(seed: int) -> None:
    dice = random.Random(seed)
    policy = SlotPolicy(
        min_size=dice.randint(1, 3),
        max_size=dice.choice([None, 3, 6]),
        spares=dice.randint(0, 2),
        grace=dice.choice([0, 5]),
        timeout=dice.choice([60, math.inf]),
        blacklist=dice.random() < 0.2,
        cooldown=dice.choice([None, (5, 20)]),
    )
    simulation = _Simulation(policy, dice)
    for _ in range(300):
        simulation.step()
        if simulation.over:
            break
    simulation.finish()
    assert simulation.over, "the job ends"


class _Simulation:
    """Hosts and workers that do what they like, and what no policy may do."""

    def __init__(self, policy: SlotPolicy, dice: random.Random) -> None:
        self.state = State(policy)
        self.dice = dice
        self.now = 0.0
        self.over = False
        self.running: dict[int, tuple[str, int]] = {}
        self.reaching: set[str] = set()
        self.begun = -1

    def step(self) -> None:
        """Let something happen."""
        kinds = [
            self.lose,
            self.hosts,
            self.time,
            self.time,
            self.end,
            self.end,
            self.world,
            self.answer,
            self.answer,
            self.size,
            self.notice,
            self.ask,
            self.finishing,
        ]
        self.dice.choice(kinds)()

    def hosts(self) -> None:
        labels = self.dice.sample(["a", "b", "c", "d"], self.dice.randint(0, 4))
        self.tell(HostsChanged(tuple((label, self.dice.randint(0, 3)) for label in labels)))

    def time(self) -> None:
        due = next_due(self.state, self.now)
        self.now = due if self.dice.random() < 0.7 and due < math.inf else self.now + self.dice.random() * 50
        self.tell(Tick())

    def end(self) -> None:
        if self.running:
            worker = self.dice.choice(sorted(self.running))
            how = self.dice.choices([KILLED, FAILED, SUCCEEDED], [10, 3, 0.2])[0]
            del self.running[worker]
            self.tell(WorkerEnded(worker, how, self.dice.choice(["x", "y", "z"])))

    def world(self) -> None:
        if self.running:
            members = sorted(self.running)[: self.dice.randint(1, 6)]
            self.tell(WorldBegan(tuple(members)))
            self.tell(Progressed())

    def answer(self) -> None:
        if self.reaching:
            label = self.dice.choice(sorted(self.reaching))
            self.reaching.discard(label)
            good = self.dice.random() < 0.8
            self.tell(HostReady(label) if good else HostNotReady(label, "?", self.dice.random() < 0.2))

    def lose(self) -> None:
        ready = [site.label for site in self.state.sites if site.phase == "ready"]
        if ready:
            label = self.dice.choice(ready)
            self.tell(HostLost(label))
            for worker in [worker for worker, (on, _) in self.running.items() if on == label]:
                del self.running[worker]
                self.tell(WorkerEnded(worker, KILLED))
            if any(site.label == label and site.phase == "lost" for site in self.state.sites):
                self.tell(HostNotReady(label, "?"))

    def notice(self) -> None:
        if self.state.sites:
            label = self.dice.choice(self.state.sites).label
            self.tell(HostNoticed(label, self.dice.choice(["", "soon"])))

    def ask(self) -> None:
        if self.running:
            self.tell(WorkerLeaves(self.dice.choice(sorted(self.running)), "it got SIGTERM"))

    def finishing(self) -> None:
        if self.running:
            self.tell(Finishing(self.dice.random() < 0.3))

    def size(self) -> None:
        least = self.dice.randint(1, 3)
        self.tell(Resized(least, self.dice.choice([None, least, 5])))

    def finish(self) -> None:
        """Let all that run finish, and no host come any more."""
        for _ in range(100):
            if self.over:
                return
            if not self.running:
                self.tell(HostsChanged((("last", 3),)))
                self.now += 1000
                self.tell(Tick())
                self.reaching and self.answer()
                continue
            worker = min(self.running)
            self.tell(WorldBegan(tuple(sorted(self.running)[:2])))
            del self.running[worker]
            self.tell(WorkerEnded(worker, FINISHED))

    def tell(self, event: Event) -> None:
        if self.over:
            return
        before = {site.label: site for site in self.state.sites}
        self.state, actions, _ = decide(self.state, event, self.now)
        assert next_due(self.state, self.now) > self.now
        for action in actions:
            self.check(action, before)
        assert {worker: (site.label, slot.index) for worker, (site, slot) in living(self.state).items()} == self.running

    def check(self, action: Action, before: dict[str, object]) -> None:
        """Do what an action says, and see that it may be done."""
        if isinstance(action, ReachHost):
            assert action.label not in self.reaching
            self.reaching.add(action.label)
        elif isinstance(action, StartWorker):
            site = next(site for site in self.state.sites if site.label == action.label)
            assert action.worker > self.begun, "no number is used twice"
            assert (action.label, action.slot) not in self.running.values(), "one worker in a slot"
            assert site.phase == "ready" and site.barred_until <= self.now and not site.closed
            assert action.slot < site.size
            self.begun = action.worker
            self.running[action.worker] = (action.label, action.slot)
            here = living(self.state).values()
            staying = sum(not (site.closed or slot.draining or slot.left) for site, slot in here)
            # One is started though there is no room if nobody else stays.
            assert len(self.running) <= self.state.policy.most or staying == 1, "no more workers than may be"
            assert not self.state.closing
        elif isinstance(action, DrainWorkers | StopWorkers):
            assert action.workers and set(action.workers) <= self.running.keys()
        elif isinstance(action, EndHost):
            assert all(label != action.label for label, _ in self.running.values())
            self.reaching.discard(action.label)
        elif isinstance(action, EndJob):
            self.over = True
