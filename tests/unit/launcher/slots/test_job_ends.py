"""The end of a job, and the failures that end it."""

from __future__ import annotations

from slot_jobs import Job, beginning, ended, said, started

from farandole.control.launcher.slots.job_events import (
    FAILED,
    FINISHED,
    KILLED,
    STATE_LOST,
    SUCCEEDED,
    EndJob,
    HostReady,
    HostsChanged,
    Progressed,
    StopWorkers,
)
from farandole.control.launcher.slots.worker_rules import will_start


def test_job_ends_if_all_first_workers_fail_without_progress() -> None:
    job = Job(beginning(1, 2), ("h1", 2))
    assert not ended(job.end(0, FAILED, "SyntaxError"))
    assert "all workers that were started first have failed" in ended(job.end(1, FAILED, "SyntaxError"))[0]
    assert job.wait(100) == []


def test_first_workers_that_were_killed_are_replaced() -> None:
    job = Job(beginning(1, 2), ("h1", 2))
    job.end(0)
    assert not ended(job.end(1))


def test_workers_are_restarted_if_all_fail_after_progress() -> None:
    job = Job(beginning(1, 2), ("h1", 2))
    job.begin_world(0, 1)
    job.tell(Progressed())
    job.end(0, FAILED, "a")
    assert not ended(job.end(1, FAILED, "b"))


def test_first_workers_that_fail_do_not_end_a_world_of_others() -> None:
    job = Job(beginning(1, 2), ("h1", 2))
    job.begin_world(0, 1)
    job.end(0, FAILED, "a")
    job.begin_world(1, 2)
    assert not ended(job.end(1, FAILED, "b"))


def test_loss_of_state_ends_job_at_once() -> None:
    job = Job(beginning(1, 2), ("h1", 2))
    job.begin_world(0, 1)
    job.tell(Progressed())
    job.end(0, FAILED, "a")
    job.end(1, FAILED, "b")
    job.begin_world(2, 3)
    (end,) = job.end(2, STATE_LOST, "nobody is left")
    assert isinstance(end, EndJob) and "--resume auto" in end.hint
    assert "all workers that held the state of the training are lost" in end.why


def test_third_equal_failure_of_a_rank_ends_job() -> None:
    job = Job(beginning(1, 2), ("h1", 2))
    job.begin_world(0, 1)
    job.tell(Progressed())
    actions = job.end(1, FAILED, "ValueError: boom")
    for worker in (2, 3):
        assert not ended(actions)
        job.wait(2)
        job.begin_world(0, worker)
        actions = job.end(worker, FAILED, "ValueError: boom")
    assert ended(actions) == ["rank 1 failed 3 times in a row in the same way (ValueError: boom)"]
    assert said(actions) == "", "nothing is told of what would be started next"


def test_worker_that_left_but_does_not_end_is_ended() -> None:
    job = Job(beginning(1, 2, grace=5), ("h1", 2))
    job.begin_world(0, 1)
    job.begin_world(1)
    assert [each.workers for each in job.wait(5.5) if isinstance(each, StopWorkers)] == [(0,)]


def test_no_worker_starts_once_one_has_finished() -> None:
    job = Job(beginning(1, 2, spares=1), ("h1", 4))
    job.begin_world(0, 1)
    assert job.end(0, SUCCEEDED) == []
    assert ended(job.end(1, KILLED)) == [""]  # The spare waits for nothing.


def test_end_of_one_worker_does_not_end_job_whose_other_hosts_are_slow_to_start() -> None:
    """Its functions call no init(), so they do not wait for each other."""
    job = Job(beginning(2, 3, first_size=2), ("h1", 1))
    assert job.end(0, SUCCEEDED) == [] and job.workers() == []
    assert will_start(job.state, job.now) is False, "the slot has done its part"
    job.tell(HostsChanged((("h1", 1), ("h2", 2))))
    assert started(job.tell(HostReady("h2"))) == [(1, "h2", 0), (2, "h2", 1)]
    assert started(job.end(1, KILLED)) == [(3, "h2", 0)], "one that is lost is replaced"
    assert not ended(job.end(3, FINISHED))
    assert started(job.tell(HostsChanged((("h1", 1), ("h2", 3))))) == [], "enough have ended well"
    assert ended(job.end(2, SUCCEEDED)) == [""]


def test_job_waits_in_vain_for_the_rest_of_its_least_workers() -> None:
    job = Job(beginning(2, 2, timeout=60), ("h1", 1))
    job.end(0, SUCCEEDED)
    job.tell(HostsChanged(()))
    assert ended(job.wait(30)) == []
    assert "only 1 of at least 2 workers have a place" in ended(job.wait(31))[0]


def test_smaller_minimum_ends_job_of_which_enough_workers_have_ended() -> None:
    job = Job(beginning(2, 2), ("h1", 1))
    job.end(0, SUCCEEDED)
    assert ended(job.resize(1, 2)) == [""]


def test_finished_worker_is_not_replaced() -> None:
    job = Job(beginning(1, 3), ("h1", 2))
    job.begin_world(0, 1)
    job.finish()
    job.begin_world(0)
    assert started(job.end(1, FINISHED)) == []
    actions = job.end(0, KILLED)
    assert started(actions) == [] and ended(actions) == [""]


def test_no_worker_starts_while_one_seems_to_have_finished() -> None:
    job = Job(beginning(1, 3), ("h1", 2))
    job.begin_world(0, 1)
    job.finish()
    assert not will_start(job.state, job.now)
    assert started(job.tell(HostsChanged((("h1", 3),)))) == []
    assert started(job.finish(False)) == [(2, "h1", 2)]


def test_newcomers_refused_at_the_end_have_not_failed() -> None:
    job = Job(beginning(1, 3), ("h1", 3))
    job.begin_world(0, 1)
    job.finish()
    assert job.end(2, SUCCEEDED) == []
    assert job.state.sites[0].slots[2].failures == 0
    assert started(job.finish(False)) == [(3, "h1", 2)], "the one that had finished has failed after all"


def test_job_ends_without_workers_even_if_a_finish_was_missed() -> None:
    job = Job(beginning(1, 1), ("h1", 1))
    job.begin_world(0)
    job.finish()
    assert ended(job.end(0, KILLED)) == [""]


def test_command_without_worlds_ends_with_its_last_process() -> None:
    job = Job(beginning(1, 2), ("h1", 2))
    assert job.end(0, SUCCEEDED) == []
    assert ended(job.end(1, SUCCEEDED)) == [""]
