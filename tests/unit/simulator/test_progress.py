"""A simulation ends, whatever a policy does, and says which jobs could not be completed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from schedules import ends, run

from farandole.control.scheduler.cluster import Allocation, Cluster, parse_cluster
from farandole.control.scheduler.job import Decision, PolicyJob
from farandole.control.scheduler.policies import POLICIES, make_policy
from farandole.control.scheduler.rules import Rules
from farandole.control.simulator import synthetic
from farandole.control.simulator.application import Application
from farandole.control.simulator.job_trace import TraceJob, Workload
from farandole.control.simulator.profiles import applications_of
from farandole.control.simulator.setup import Options, simulate

TWO = [TraceJob(f"job-{index}", 0.0, 8, run_time=1000.0, category="rigid") for index in range(2)]


@pytest.fixture(scope="module")
def applications() -> Mapping[str, Application]:
    return applications_of(synthetic.profiles())


@dataclass
class Refuses:
    """A policy that gives one job nothing, and asks for a review every minute."""

    refused: str
    resizes: bool = False

    def decide(self, cluster: Cluster, jobs: Sequence[PolicyJob], now: float) -> Decision:
        others = [job for job in jobs if job.name != self.refused]
        given = {job.name: Allocation("slot", ((0, 4), (1, 4))) for job in others[:1]}
        return Decision(given, {self.refused: "waits: it is refused"}, now + 60.0)


class Swaps:
    """A policy that gives all slots to the other job at each decision."""

    resizes = False

    def decide(self, cluster: Cluster, jobs: Sequence[PolicyJob], now: float) -> Decision:
        job = next((job for job in jobs if job.allocation is None), jobs[0])
        return Decision({job.name: Allocation("slot", ((0, 4), (1, 4)))}, {}, now + 60.0)


@pytest.mark.parametrize("interval", [0.0, 60.0])
def test_job_that_never_starts_does_not_block_others(interval: float) -> None:
    outcome = run(TWO, Refuses("job-0"), options=Options(interval=interval, restart=0.0, predictions="given"))
    assert set(ends(outcome)) == {"job-1"}
    assert outcome.unfinished == {"job-0": "waits: it is refused"}


@pytest.mark.parametrize("interval", [0.0, 60.0])
def test_jobs_that_only_restart_are_detected(interval: float) -> None:
    slow, fast = (Options(interval=interval, restart=restart, predictions="given") for restart in (100.0, 10.0))
    outcome = run(TWO, Swaps(), options=slow)
    assert set(outcome.unfinished) == {"job-0", "job-1"}
    assert "restarts again and again" in " ".join(outcome.unfinished.values())
    assert not run(TWO, Swaps(), options=fast).unfinished


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("interval", [0.0, 60.0])
def test_restarts_longer_than_a_time_slice_complete(policy: str, interval: float) -> None:
    options = Options(interval=interval, restart=100.0, predictions="given")
    outcome = run(TWO, policy, rules=Rules(quantum=60.0), options=options)
    assert len(ends(outcome)) == 2 and outcome.decisions < 200


def test_adaptive_trainings_complete_without_rounds(applications: Mapping[str, Application]) -> None:
    workload = Workload("w", (TraceJob("a", 0.0, 4, "digits", 256),))
    outcome = simulate(
        parse_cluster("fast:1x8"), workload, applications, make_policy("equal"), Options(interval=0.0, restart=0.0)
    )
    assert ends(outcome) and not outcome.unfinished


def test_unmeasured_placement_fails_only_its_job() -> None:
    files = synthetic.profiles()
    placements = (
        "placement,local_bsz,step_time,sync_time\n1,32,0.1,0\n1,512,0.5,0\n2,32,0.1,0\n2,512,0.6,0\n22,256,0.6,0\n"
    )
    few = {name: text for name, text in files.items() if name.startswith("apps/digits/validation-")}
    applications = applications_of({**few, "apps/digits/placements-plain.csv": placements})
    jobs = (TraceJob("two", 0.0, 2, "digits", 256), TraceJob("one", 1.0, 1, "digits", 256))
    outcome = simulate(parse_cluster("plain:2x4"), Workload("w", jobs), applications, make_policy("spread"), Options())
    assert list(ends(outcome)) == ["one"]
    assert outcome.unfinished == {"two": "no layout like (1, 1) with a local batch of 128 was measured"}
