"""Under the adaptive policy, an overdue job starts even if other jobs are worth more."""

from __future__ import annotations

from dataclasses import replace

from schedules import given, run, starts, view

from farandole.control.scheduler.adaptive.policy import Adaptive
from farandole.control.scheduler.cluster import Allocation, parse_cluster
from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.rules import Queue, Rules
from farandole.control.simulator.job_trace import TraceJob
from farandole.control.simulator.setup import Options

RULES = Rules(ageing=600.0)
SIXTEEN = parse_cluster("2x8")


def small(index: int, preemptible: bool, since: float) -> PolicyJob:
    """Return a job of one slot that runs, on the slot of its number."""
    has = Allocation("slot", ((index // 8, 1),))
    return view(f"small-{index}", 1, since, duration=600.0, allocation=has, preemptible=preemptible)


def test_large_job_starts_despite_stream_of_small_jobs() -> None:
    stream = [TraceJob(f"small-{index:03}", 30.0 * index, 1, run_time=600.0) for index in range(300)]
    large = TraceJob("large", 1000.0, 16, run_time=600.0)
    outcome = run([*stream, large], "adaptive", SIXTEEN, RULES, Options(interval=60.0, predictions="given"))
    assert starts(outcome)["large"] <= 1000 + 2 * 600  # Those before it that have waited longer come first.
    (job,) = (job for job in outcome.jobs if job.view.name == "large")
    assert job.completed is not None and job.completed < stream[-1].submitted and job.view.account.restarts == 0


def test_slots_are_reserved_for_overdue_job() -> None:
    large = view("large", 16, 0.0, duration=900.0)
    runs = [small(index, False, 500.0) for index in range(15)]
    comes = view("comes", 1, 600.0, duration=600.0)
    early = Adaptive(RULES).decide(SIXTEEN, [large, *runs, comes], 600.0).allocations
    assert "comes" in early and "large" not in early
    late = Adaptive(RULES).decide(SIXTEEN, [large, *runs, comes], 601.0).allocations
    assert set(late) == {job.name for job in runs}
    assert set(Adaptive(RULES).decide(SIXTEEN, [large, comes], 601.0).allocations) == {"large"}


def test_overdue_job_runs_as_long_as_it_has_waited() -> None:
    has = Allocation("slot", ((0, 8), (1, 8)))
    large = given(view("large", 16, 0.0, duration=1e5), has, since=700.0)
    waits = [view(f"small-{index}", 1, 600.0, duration=60.0) for index in range(16)]
    assert set(Adaptive(RULES).decide(SIXTEEN, [large, *waits], 1399.0).allocations) == {"large"}
    assert "large" not in Adaptive(RULES).decide(SIXTEEN, [large, *waits], 1401.0).allocations


def test_queue_limit_holds_for_overdue_job() -> None:
    rules = replace(RULES, queues={"red": Queue("red", limit=8)})
    large, other = view("large", 16, queue="red"), view("other", 1, 1.0, duration=60.0)
    assert set(Adaptive(rules).decide(SIXTEEN, [large, other], 5000.0).allocations) == {"other"}
