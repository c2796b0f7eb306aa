"""An oracle: the adaptive policy with the truth about every submitted job, to show the gain of perfect predictions.

A real policy gets only `PolicyJob`s. The oracle also gets a `Truth` for each job, a type that exists only in the
simulator: the progress that the job needs, and its step times in every configuration, including those that it has not
run. So it predicts exactly and need not explore. It still maximises the sum of the adaptive policy, and does not know
jobs before their submission, so it is not an upper bound for all policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from farandole.control.scheduler.adaptive.candidates import sizes
from farandole.control.scheduler.adaptive.policy import Adaptive
from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import Decision, Measurement, Noise, PolicyJob, TrainingReport
from farandole.control.scheduler.rules import Rules
from farandole.control.simulator.application import Application
from farandole.control.simulator.job_trace import Workload
from farandole.control.simulator.setup import alone

NAME = "oracle"
SENTENCE = "the adaptive policy with the truth about all submitted jobs, to show what exact predictions would gain"


class Truth(NamedTuple):
    """The truth about one job.

    Attributes:
        duration: run time in seconds, alone with the requested slots.
        progress: progress that it needs; None: it has a fixed run time.
        steps: step times in all configurations that a policy may choose, by type of node.
        noise: gradient noise before its first step.
    """

    duration: float
    progress: float | None
    steps: Mapping[str, tuple[Measurement, ...]]
    noise: Noise | None


class Oracle:
    """A policy that knows the truth.

    Args:
        truths: truth about each job, by name.
        rules: settings of the policy.
    """

    resizes = True

    def __init__(self, truths: Mapping[str, Truth], rules: Rules) -> None:
        self._truths = truths
        self._policy = Adaptive(rules)
        self._told: dict[str, tuple[TrainingReport, TrainingReport]] = {}

    def decide(self, cluster: Cluster, jobs: Sequence[PolicyJob], now: float) -> Decision:
        """Return the slots of each job, with reasons."""
        return self._policy.decide(cluster, [self._with_truth(job) for job in jobs], now)

    def _with_truth(self, job: PolicyJob) -> PolicyJob:
        truth = self._truths[job.name]
        return replace(
            job,
            duration=truth.duration,
            total_progress=truth.progress,
            largest_run=job.max_slots,
            known=None,
            report=None if job.report is None else self._report(job.name, job.report, truth),
        )

    def _report(self, name: str, report: TrainingReport, truth: Truth) -> TrainingReport:
        """Return a report with the truth; equal ones are the same object, so that models are not fitted again."""
        before = self._told.get(name)
        if before is None or before[0] is not report:
            told = replace(report, measured=truth.steps, noise=report.noise or truth.noise)
            self._told[name] = before = (report, told)
        return before[1]


def make_oracle(workload: Workload, applications: Mapping[str, Application], cluster: Cluster, rules: Rules) -> Oracle:
    """Return the oracle of a workload."""
    steps = {name: _steps(application, cluster) for name, application in applications.items()}
    truths = {}
    for job in workload.jobs:
        application = applications.get(job.application)
        duration = alone(job, application, cluster)
        if application is None:
            truths[job.name] = Truth(duration, None, {}, None)
        else:
            first = application.convergence.noise_at(0, application.limits.initial)
            progress = application.convergence.thresholds[-1]
            truths[job.name] = Truth(duration, progress, steps[job.application], first)
    return Oracle(truths, rules)


def _steps(application: Application, cluster: Cluster) -> dict[str, tuple[Measurement, ...]]:
    """Return the true step times of the candidate sizes of jobs."""
    found = {}
    for type_ in cluster.types:
        if type_ in application.steps:
            layouts = {(one.nodes, one.slots) for one in sizes(cluster, type_, cluster.slots_of[type_])}
            rows = application.steps[type_].table()
            found[type_] = tuple(row for row in rows if (row.nodes, row.workers) in layouts)
    return found
